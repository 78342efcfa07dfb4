-- The Iceberg format version of tables that are registered from now on, unless `register` is given another.
ALTER TABLE modak.mirror_slots ADD COLUMN format_version integer NOT NULL DEFAULT 2;
-- The version that a lake table has is recorded with the state that the mirror builds on.
UPDATE modak.mirror_tables SET lake_head = lake_head || '{"format_version": 2}' WHERE lake_head IS NOT NULL;
