-- Whether the column list and the row filter are an administrator's: the table was registered without any, so that it gets
-- all columns and rows back when they are removed from the publication.
ALTER TABLE modak.mirror_tables ADD COLUMN rules_taken_over boolean NOT NULL DEFAULT false;
