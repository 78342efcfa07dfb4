-- Whether a copy of the table replaces only the rows that differ from the heap: the metadata that it builds on has the rows
-- that readers see.
ALTER TABLE modak.mirror_tables ADD COLUMN where_different boolean NOT NULL DEFAULT false;
