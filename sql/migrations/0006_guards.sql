-- The state of each lake table that the mirror builds on: one that it made, or another engine's rewrite that it examined.
ALTER TABLE modak.mirror_tables ADD COLUMN lake_head jsonb;

-- Whether the files of an ended registration are the only copy of some rows, which are removed by --yes only.
ALTER TABLE modak.former_locations ADD COLUMN only_copy boolean;

-- Files of the lake that could not be read, for the alerts of `status`.
CREATE TABLE modak.mirror_damaged_files (
    table_id        bigint      NOT NULL REFERENCES modak.mirror_tables (table_id) ON DELETE CASCADE,
    location        text        NOT NULL,
    error           text        NOT NULL,
    found_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (table_id, location)
);
COMMENT ON TABLE modak.mirror_damaged_files IS 'Files of lake tables that a job of the pump could not read, until they can be read or are not needed';

-- Pins belong to the role that made them, and last for a limited time. Those from before belong to nobody yet.

ALTER TABLE modak.read_pins ADD COLUMN made_by text, ADD COLUMN ends_with int;
ALTER TABLE modak.schema_meta
    ADD COLUMN max_pin_seconds int NOT NULL DEFAULT 86400 CHECK (max_pin_seconds >= 900);
