-- Columns that are added to a table with masks may hold what a mask keeps out of the lake.
ALTER TABLE modak.mirror_tables ADD COLUMN leaves_out_new boolean NOT NULL DEFAULT false;
