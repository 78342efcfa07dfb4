-- Since when a table is paused: taken out of the publication on request. NULL: it is not.
ALTER TABLE modak.mirror_tables ADD COLUMN paused_at timestamptz;
