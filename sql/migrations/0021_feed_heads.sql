-- The state of a change feed that the mirror builds on, as modak.mirror_tables.lake_head. NULL: the next look records the
-- present one.
ALTER TABLE modak.change_feeds ADD COLUMN head jsonb;
