-- The tables of schema modak, with their indexes and constraints; docs/catalog-schema.md describes their columns.
-- Plain integers, text and jsonb only: foreign engines read these tables through Postgres scanners.
-- Functions, views and triggers are in sql/functions, whose files run after the migrations. So a migration that changes a
-- column first drops the views that depend on it.

CREATE TABLE modak.schema_meta (
    version     int         NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.schema_meta IS 'One row: the version of the public seam catalog that these tables follow';
INSERT INTO modak.schema_meta (version) VALUES (1);

CREATE TABLE modak.storage_profiles (
    profile_name    text        PRIMARY KEY,
    lake_format     text,
    warehouse       text        NOT NULL,
    lake_config     jsonb,
    credential_ref  text,
    is_default      boolean     NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.storage_profiles IS 'Warehouses by name; no secrets';
CREATE UNIQUE INDEX modak_storage_profiles_default_idx ON modak.storage_profiles (is_default) WHERE is_default;
INSERT INTO modak.storage_profiles (profile_name, warehouse, is_default) VALUES ('default', '', true);

CREATE TABLE modak.tables (
    table_id            bigint      PRIMARY KEY,
    schema_name         text        NOT NULL,
    table_name          text        NOT NULL,
    primary_key_cols    text[]      NOT NULL,
    tier_key_col        text        NOT NULL,
    tier_key_type       text        NOT NULL DEFAULT 'bigint',
    partition_scheme    jsonb       NOT NULL,
    lake_format         text        NOT NULL,
    lake_table_ref      text        NOT NULL,
    storage_profile     text        NOT NULL DEFAULT 'default' REFERENCES modak.storage_profiles (profile_name),
    mode                text        NOT NULL DEFAULT 'tiered' CHECK (mode IN ('tiered', 'mirrored')),
    publication_name    text,
    slot_name           text,
    heap_retention_lag  bigint,
    lake_retention_lag  bigint,
    keep_heap           boolean     NOT NULL DEFAULT false,
    maintenance_policy  jsonb,
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (schema_name, table_name),
    CONSTRAINT tables_mirror_columns
        CHECK (mode = 'mirrored'
               OR (publication_name IS NULL AND slot_name IS NULL AND heap_retention_lag IS NULL)),
    CONSTRAINT tables_tiered_columns CHECK (mode = 'tiered' OR (lake_retention_lag IS NULL AND NOT keep_heap)),
    CONSTRAINT tables_kept_heap CHECK (NOT keep_heap OR lake_retention_lag IS NULL)
);
COMMENT ON TABLE modak.tables IS 'Registered tables, by the OID of their relation; registration only, no run-time state';

CREATE TABLE modak.cutline (
    table_id            bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    tier_key_hi         bigint      NOT NULL,
    lake_snapshot_id    bigint      NOT NULL,
    replicated_lsn      bigint,
    retention_line      bigint,
    lake_props          jsonb,
    updated_at          timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.cutline IS 'Cut-line, published snapshot and frontier of each table; they advance in one transaction';

CREATE TABLE modak.partitions (
    table_id        bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    partition_id    text        NOT NULL,
    tier_key_lo     bigint      NOT NULL,
    tier_key_hi     bigint      NOT NULL,
    state           text        NOT NULL CHECK (state IN ('hot', 'sealing', 'tiering', 'tiered', 'dropped')),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    relation_id     bigint,
    sealed_lsn      bigint,
    captured_after  bigint,
    capture_limit   bigint      NOT NULL DEFAULT 100000,
    advanced_xid    bigint,
    truncated       boolean     NOT NULL DEFAULT false,
    proven_at       timestamptz,
    proven_as       text,
    disproved_at    timestamptz,
    reason          text,
    attempts        int         NOT NULL DEFAULT 0,
    gone_as         text,
    PRIMARY KEY (table_id, partition_id)
);
COMMENT ON TABLE modak.partitions IS 'State of each heap partition, with its tier key bounds';

CREATE TABLE modak.delta (
    table_id        bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    pk              text        NOT NULL,
    op              smallint    NOT NULL,
    tier_key        bigint      NOT NULL,
    old_tier_key    bigint,
    version         bigint      NOT NULL,
    payload         jsonb,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    folded_sequence bigint,
    PRIMARY KEY (table_id, pk)
);
COMMENT ON TABLE modak.delta IS 'Corrections of rows below the cut-line (op 0 upsert, 1 tombstone), merged by readers until folded';
CREATE INDEX modak_delta_tier_key_idx ON modak.delta (table_id, tier_key);
CREATE SEQUENCE modak.delta_version;

CREATE TABLE modak.read_pins (
    pin_id                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id                bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    pinned_lake_snapshot_id bigint      NOT NULL,
    pinned_tier_key_hi      bigint      NOT NULL,
    started_at              timestamptz NOT NULL DEFAULT now(),
    expires_at              timestamptz NOT NULL,
    reader                  text        NOT NULL DEFAULT session_user || format(' in process %s', pg_backend_pid())
        || coalesce(', ' || nullif(current_setting('application_name', true), ''), ''),
    in_one_snapshot         boolean     NOT NULL DEFAULT false
);
COMMENT ON TABLE modak.read_pins IS 'Reads in progress; nothing that the oldest pin can see may be reclaimed';
COMMENT ON COLUMN modak.read_pins.in_one_snapshot IS
    'The reader takes heap and delta in one snapshot of the database, of the corrections those below its cut-line, which moves on meanwhile';
CREATE INDEX modak_read_pins_horizon_idx ON modak.read_pins (table_id, pinned_lake_snapshot_id);

CREATE TABLE modak.op_log (
    op_id               uuid        PRIMARY KEY,
    table_id            bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    op_kind             text        NOT NULL
        CHECK (op_kind IN ('tiering', 'compaction', 'maintenance', 'retention', 'ingest', 'load')),
    phase               text        NOT NULL,
    lake_snapshot_id    bigint,
    details             jsonb,
    updated_at          timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.op_log IS 'Journal of operations on the lake, by which they are resumed and not repeated';
CREATE INDEX modak_op_log_table_idx ON modak.op_log (table_id, updated_at);
-- Twice a second, maintainers look for requests whose maintainer has died. The journal keeps 30 days.
CREATE INDEX modak_op_log_running_idx ON modak.op_log (table_id) WHERE phase = 'running';
-- `status` reads the last pass and sweep of each table, among many more rows of folds and steps of retention.
CREATE INDEX modak_op_log_maintenance_idx ON modak.op_log (table_id, updated_at) WHERE op_kind = 'maintenance';

CREATE TABLE modak.load_labels (
    table_id        bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    label           text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('staged', 'committed', 'failed')),
    staged_files    jsonb,
    result          jsonb,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (table_id, label)
);
COMMENT ON TABLE modak.load_labels IS 'Labelled bulk loads and their outcome';
CREATE INDEX modak_load_labels_state_idx ON modak.load_labels (table_id, state);

CREATE TABLE modak.copy_progress (
    table_id            bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    consistent_point    bigint      NOT NULL,
    last_pk             jsonb,
    chunks_done         bigint      NOT NULL DEFAULT 0,
    updated_at          timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.copy_progress IS 'Running initial copies; the copy of a table without a row here is complete';

CREATE TABLE modak.lake_stats (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    stats           jsonb       NOT NULL,
    warnings        jsonb       NOT NULL DEFAULT '[]'::jsonb,
    policy          jsonb,
    collected_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.lake_stats IS 'Statistics of the lake tables';

CREATE TABLE modak.maintenance_requests (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    requested_at    timestamptz NOT NULL DEFAULT now(),
    requested_by    text        NOT NULL
);
COMMENT ON TABLE modak.maintenance_requests IS 'Requests for maintenance; a maintainer claims a request by deleting it';

-- The layout is fixed by Iceberg's JdbcCatalog (schema version V1); pyiceberg's SqlCatalog uses the same.
CREATE TABLE modak.iceberg_tables (
    catalog_name                varchar(255)    NOT NULL,
    table_namespace             varchar(255)    NOT NULL,
    table_name                  varchar(255)    NOT NULL,
    metadata_location           varchar(1000),
    previous_metadata_location  varchar(1000),
    iceberg_type                varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
COMMENT ON TABLE modak.iceberg_tables IS 'Iceberg''s JDBC catalog: the current metadata file of every lake table';

CREATE TABLE modak.iceberg_namespace_properties (
    catalog_name    varchar(255)    NOT NULL,
    namespace       varchar(255)    NOT NULL,
    property_key    varchar(255)    NOT NULL,
    property_value  varchar(1000),
    PRIMARY KEY (catalog_name, namespace, property_key)
);
COMMENT ON TABLE modak.iceberg_namespace_properties IS 'Iceberg''s JDBC catalog: its namespaces';

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
    last_error          jsonb,
    accepted_until      timestamptz
);
COMMENT ON TABLE modak.mirror_slots IS 'The replication slot: the server that it belongs to, the position applied from it, and its leader';

CREATE TABLE modak.mirror_tables (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    slot_name       text        NOT NULL REFERENCES modak.mirror_slots (slot_name),
    state           text        NOT NULL CHECK (state IN ('waiting', 'copying', 'filling', 'live', 'failed', 'dropped')),
    start_lsn       bigint      NOT NULL,
    start_sequence  bigint      NOT NULL,
    generation      int         NOT NULL DEFAULT 0,
    live_after_lsn  bigint,
    columns         jsonb       NOT NULL,
    key             text[]      NOT NULL,
    lake_table      text        NOT NULL,
    location        text        NOT NULL,
    next_field_id   int         NOT NULL,
    error           text,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    swept_before    timestamptz,
    key_index       jsonb,
    shape           jsonb,
    staged_location text,
    staged_snapshot_id bigint,
    published       text,
    dropped_rows    jsonb,
    excluded        jsonb       NOT NULL DEFAULT '[]',
    retention       jsonb
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
COMMENT ON TABLE modak.former_locations IS 'Locations with files of registrations that have ended, until these files are removed';

CREATE TABLE modak.mirror_shapes (
    table_id    bigint      PRIMARY KEY REFERENCES modak.mirror_tables (table_id) ON DELETE CASCADE,
    shape       jsonb,
    noted_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_shapes IS 'Columns, key and partitions of each mirrored table, as last noted in the stream';

-- Any role may put messages into the stream. Change notes have a signature, which requires this secret and is valid in one
-- transaction only.
CREATE TABLE modak.mirror_secret (
    secret      text        NOT NULL
);
COMMENT ON TABLE modak.mirror_secret IS 'Secret that signs the notes of schema changes: a role that can read it can forge them';
INSERT INTO modak.mirror_secret VALUES (gen_random_uuid()::text || gen_random_uuid()::text);

CREATE TABLE modak.mirror_captured (
    table_id        bigint      NOT NULL REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    partition_id    text        NOT NULL,
    pk              text        NOT NULL,
    op              smallint    NOT NULL,
    tier_key        bigint      NOT NULL,
    version         bigint      NOT NULL,
    payload         jsonb,
    PRIMARY KEY (table_id, pk)
);
COMMENT ON TABLE modak.mirror_captured IS 'Changes of partitions that are being sealed; they become corrections when the cut-line passes';
CREATE INDEX mirror_captured_partition_idx ON modak.mirror_captured (table_id, partition_id);

CREATE TABLE modak.mirror_functions (
    file        text        PRIMARY KEY,
    checksum    text        NOT NULL,
    objects     text[]      NOT NULL,
    program     text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_functions IS 'The files of functions and views that were applied, and what they defined';
