-- Columns that are added to a table with masks may hold what a mask keeps out of the lake.
ALTER TABLE modak.mirror_tables ADD COLUMN leaves_out_new boolean NOT NULL DEFAULT false;

-- Whether the publication lists the table's columns, so that the server sends no others.
ALTER TABLE modak.mirror_tables ADD COLUMN column_list boolean NOT NULL DEFAULT false;

-- Which rows of a table are mirrored: its filter in the publication, as SQL, and a mark that does not change by renames.
ALTER TABLE modak.mirror_tables ADD COLUMN row_filter text NOT NULL DEFAULT '', ADD COLUMN row_filter_mark text;
