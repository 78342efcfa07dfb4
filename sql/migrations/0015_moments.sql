-- Moments that are kept until they are dropped (docs/design/moments.md). Neither table refers to a registration: the files of
-- a table that was unregistered stay readable for as long as a moment names them.

CREATE TABLE modak.moments (
    slot_name       text        NOT NULL,
    name            text        NOT NULL,
    frontier        bigint      NOT NULL,
    kept_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    kept_by         text        NOT NULL DEFAULT session_user,
    note            text,
    PRIMARY KEY (slot_name, name)
);
COMMENT ON TABLE modak.moments IS 'Frontiers that are kept: the snapshots of all tables at each stay until it is dropped';

CREATE TABLE modak.moment_tables (
    slot_name           text    NOT NULL,
    name                text    NOT NULL,
    table_id            bigint  NOT NULL,
    schema_name         text    NOT NULL,
    table_name          text    NOT NULL,
    snapshot_id         bigint  NOT NULL,
    metadata_location   text    NOT NULL,
    main_snapshot_id    bigint  NOT NULL,
    main_location       text    NOT NULL,
    PRIMARY KEY (slot_name, name, table_id),
    FOREIGN KEY (slot_name, name) REFERENCES modak.moments ON DELETE CASCADE
);
COMMENT ON TABLE modak.moment_tables IS 'The snapshot of each table of a moment, and a metadata file in which it is the only one';
CREATE INDEX modak_moment_tables_table_idx ON modak.moment_tables (table_id);
