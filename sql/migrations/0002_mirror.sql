-- What the mirror adds to the seam catalog: its slots, its tables' columns, and its copies.

CREATE TABLE modak.mirror_slots (
    slot_name           text        PRIMARY KEY,
    publication_name    text        NOT NULL,
    system_identifier   text        NOT NULL,
    timeline            int         NOT NULL,
    database_name       text        NOT NULL,
    applied_lsn         bigint      NOT NULL,
    applied_commit_time timestamptz,
    applied_at          timestamptz,
    leader_epoch        bigint      NOT NULL DEFAULT 0,
    publish_id          bigint      NOT NULL DEFAULT 0,
    leader              jsonb,
    last_error          jsonb
);
COMMENT ON TABLE modak.mirror_slots IS 'The replication slot: whose it is, what has been applied from it, and by which leader';

CREATE TABLE modak.mirror_tables (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    slot_name       text        NOT NULL REFERENCES modak.mirror_slots (slot_name),
    state           text        NOT NULL CHECK (state IN ('waiting', 'copying', 'filling', 'live', 'failed', 'dropped')),
    start_lsn       bigint      NOT NULL,
    born_sequence   bigint      NOT NULL,
    generation      int         NOT NULL DEFAULT 0,
    live_after_lsn  bigint,
    columns         jsonb       NOT NULL,
    key             text[]      NOT NULL,
    lake_table      text        NOT NULL,
    location        text        NOT NULL,
    next_field_id   int         NOT NULL,
    error           text,
    updated_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_tables IS 'Mirrored tables: state, columns with their Iceberg field IDs, and where their history begins';

CREATE TABLE modak.copy_chunks (
    table_id    bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    generation  int         NOT NULL,
    chunk_no    int         NOT NULL,
    relation_id bigint      NOT NULL,
    filenode    bigint      NOT NULL,
    lo_block    bigint      NOT NULL,
    hi_block    bigint,
    rows        bigint,
    done_at     timestamptz,
    PRIMARY KEY (table_id, generation, chunk_no)
);
COMMENT ON TABLE modak.copy_chunks IS 'Block ranges of initial copies; done_at is set in the transaction that publishes the chunk''s file';

CREATE TABLE modak.former_locations (
    location          text        PRIMARY KEY,
    schema_name       text        NOT NULL,
    table_name        text        NOT NULL,
    metadata_location text,
    registered_at     timestamptz NOT NULL,
    ended_at          timestamptz NOT NULL DEFAULT now(),
    ended_by          text        NOT NULL CHECK (ended_by IN ('unregister', 'register'))
);
COMMENT ON TABLE modak.former_locations IS 'Where files of registrations that have ended are, until somebody has them removed';
