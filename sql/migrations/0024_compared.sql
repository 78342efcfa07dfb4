-- What the table's last comparison with its heap has replaced, by `generation` of the copy: the report of the command that asked for it.
ALTER TABLE modak.mirror_tables ADD COLUMN compared jsonb;
