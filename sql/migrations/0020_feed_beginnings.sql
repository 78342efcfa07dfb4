-- A feed of a table that is mirrored already begins behind the command that asked for it: what ended before may lack old rows or keys.
ALTER TABLE modak.change_feeds ADD COLUMN not_before_lsn bigint NOT NULL DEFAULT 0;
