-- Tables that were registered without their rows: until they are copied again, the lake has only rows that have changed since.
ALTER TABLE modak.mirror_tables ADD COLUMN no_copy boolean NOT NULL DEFAULT false;
