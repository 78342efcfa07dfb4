-- Tables that are copied and then paused, again and again: no changes of them are followed.
ALTER TABLE modak.mirror_tables
    ADD COLUMN snapshot_only  boolean NOT NULL DEFAULT false,
    ADD COLUMN snapshot_every interval;
