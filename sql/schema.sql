-- Schema modak as all migrations together leave it. Nothing runs this file but the test that compares the two
-- (tests/migration): databases are made and moved forward by migrations/ alone. Change both.
-- Plain integers, text and jsonb only: foreign engines read these tables through Postgres scanners.

CREATE SCHEMA IF NOT EXISTS modak;

CREATE TABLE modak.mirror_migrations (
    version     int         PRIMARY KEY,
    name        text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_migrations IS 'The migrations of mirror-pump that this database has had';

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
COMMENT ON TABLE modak.cutline IS 'T, S and F of each table; they advance in one transaction';

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
COMMENT ON TABLE modak.partitions IS 'Where each heap partition is in its life, with its tier key bounds';

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
COMMENT ON TABLE modak.delta IS 'Corrections of rows below T (op 0 upsert, 1 tombstone), merged by readers until folded';
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
COMMENT ON TABLE modak.read_pins IS 'Readers at work; nothing that the oldest pin can see may be reclaimed';
COMMENT ON COLUMN modak.read_pins.in_one_snapshot IS
    'The reader takes heap and delta in one snapshot of the database, of the delta what is below its T: T moves on meanwhile';
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
COMMENT ON TABLE modak.op_log IS 'Journal of operations on the lake, for resuming and for not repeating them';
CREATE INDEX modak_op_log_table_idx ON modak.op_log (table_id, updated_at);
-- Servers look for requests whose maintainer died twice a second, and the journal keeps a month.
CREATE INDEX modak_op_log_running_idx ON modak.op_log (table_id) WHERE phase = 'running';
-- `status` asks for the last pass and sweep of each table, among far more folds and steps of retention.
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
COMMENT ON TABLE modak.copy_progress IS 'Initial copies under way; a table without a row here is copied';

CREATE TABLE modak.lake_stats (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    stats           jsonb       NOT NULL,
    warnings        jsonb       NOT NULL DEFAULT '[]'::jsonb,
    policy          jsonb,
    collected_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.lake_stats IS 'Health of the lake tables';

CREATE TABLE modak.maintenance_requests (
    table_id        bigint      PRIMARY KEY REFERENCES modak.tables (table_id) ON DELETE CASCADE,
    requested_at    timestamptz NOT NULL DEFAULT now(),
    requested_by    text        NOT NULL
);
COMMENT ON TABLE modak.maintenance_requests IS 'Maintenance asked for; the pump takes a request by deleting it';

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
COMMENT ON TABLE modak.former_locations IS 'Where files of registrations that have ended are, until somebody has them removed';

CREATE TABLE modak.mirror_shapes (
    table_id    bigint      PRIMARY KEY REFERENCES modak.mirror_tables (table_id) ON DELETE CASCADE,
    shape       jsonb,
    told_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_shapes IS 'What the stream was last told about each mirrored table''s columns, key and partitions';

CREATE FUNCTION modak.mirror_identity(relation oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT jsonb_build_object(
           'setting', c.relreplident::text, 'immediate', coalesce(i.indimmediate, true), 'index', i.indexrelid::bigint,
           'key', ARRAY(SELECT a.attname::text FROM pg_attribute a
                         WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                         ORDER BY a.attnum))
  FROM pg_class c
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
       AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
 WHERE c.oid = relation
$$;

-- A partitioned table's whole tree, or the table itself. Unlike pg_partition_tree() it takes no locks, so that neither a
-- user's command nor our looking at it waits for another relation.
CREATE FUNCTION modak.mirror_tree(root oid) RETURNS TABLE (relation oid, is_leaf boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE tree(relation) AS (
    SELECT root
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation JOIN pg_class c ON c.oid = i.inhrelid
     WHERE c.relispartition AND NOT i.inhdetachpending)
SELECT t.relation, c.relkind <> 'p' FROM tree t JOIN pg_class c ON c.oid = t.relation
$$;

-- Whether a shape has a key that the mirror can go by; without one the table waits for its owner.
CREATE FUNCTION modak.mirror_has_key(shape jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT shape IS NOT NULL AND jsonb_array_length(shape -> 'identity' -> 'key') > 0
   AND shape -> 'identity' ->> 'setting' <> 'n' AND (shape -> 'identity' ->> 'immediate')::boolean
$$;

-- Whether the event triggers are there and on. That nobody tells of a single session that runs without (event_triggers).
CREATE FUNCTION modak.mirror_events() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) = 3 FROM pg_event_trigger
 WHERE evtname IN ('mirror_pump_ddl', 'mirror_pump_drop', 'mirror_pump_rewrite') AND evtenabled = 'A'
$$;

-- Whether a mirrored table's stored generated columns are in the stream: they are from 18 on, if the publication says so.
CREATE FUNCTION modak.mirror_sends_generated(relation oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM modak.tables t JOIN pg_publication p ON p.pubname = t.publication_name
                WHERE t.table_id IN (relation::bigint, pg_partition_root(relation)::oid::bigint)
                  AND to_jsonb(p) ->> 'pubgencols' = 's')
$$;

-- Everything about a table that decides what its rows and changes mean; NULL for one that is gone. Files are part of it
-- only where no event trigger tells why one was rewritten, or no trigger that a partition was truncated. A column is `filled`
-- if rows that exist may have a value in it that no rewrite put there; a partitioned table's own attributes do not say so, as
-- it has no rows: its partitions' do. `altered` is who wrote the attribute last, and its privileges, which are part of it: of
-- ALTER TABLE while event triggers were off for a moment, a new type that is the former one, with USING, leaves nothing
-- else. VACUUM FULL leaves it alone, but for attributes with a missing value. `attached` is who attached each partition last,
-- for the same reason. A column is `generated` if it is left out of the stream for that, `computed` if Postgres computes it in any
-- case.
-- `bound` and `partition_key` tell which rows a partition has, where its bounds tell it exactly: as bytes of this machine,
-- since to print a bound takes a lock on the partition.
CREATE FUNCTION modak.mirror_shape(relation oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE used(type) AS (
    SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT inner_types.type
      FROM used u
      JOIN pg_type t ON t.oid = u.type
      CROSS JOIN LATERAL (
          SELECT t.typbasetype AS type
          UNION ALL SELECT t.typelem
          UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
          UNION ALL SELECT a.atttypid FROM pg_attribute a
                     WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) inner_types
     WHERE inner_types.type <> 0),
missing AS (
    SELECT DISTINCT a.attname FROM modak.mirror_tree(mirror_shape.relation) r JOIN pg_attribute a ON a.attrelid = r.relation
     WHERE a.atthasmissing),
told AS (SELECT modak.mirror_events() AS all_events)
SELECT jsonb_build_object(
    'schema', n.nspname, 'name', c.relname, 'kind', c.relkind::text, 'persistence', c.relpersistence::text,
    'partition_of', CASE WHEN c.relispartition THEN
        (SELECT jsonb_build_array(rn.nspname, r.relname) FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
          WHERE r.oid = pg_partition_root(c.oid)) END,
    'inherits', EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                         WHERE c.oid IN (i.inhrelid, i.inhparent) AND NOT child.relispartition
                           AND child.relkind IN ('r', 'f')),
    'owned', pg_has_role(c.relowner, 'USAGE'), 'row_security', row_security_active(c.oid),
    'identity', modak.mirror_identity(c.oid),
    'columns', (SELECT jsonb_agg(jsonb_build_object(
                           'attnum', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
                           'sql', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull,
                           'generated', a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT sent.generated,
                           'computed', a.attgenerated <> '',
                           'altered', CASE WHEN told.all_events AND NOT a.atthasmissing
                                      THEN jsonb_build_array(a.xmin::text, a.attacl::text) END,
                           'filled', a.atthasdef OR a.attidentity <> '' OR a.attname IN (SELECT attname FROM missing)
                           ) ORDER BY a.attnum)
                  FROM pg_attribute a
                 CROSS JOIN (SELECT modak.mirror_sends_generated(mirror_shape.relation) AS generated) sent
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'leaves', (SELECT jsonb_agg(jsonb_build_object(
                          'id', l.oid::bigint, 'schema', ln.nspname, 'name', l.relname, 'kind', l.relkind::text,
                          'persistence', l.relpersistence::text, 'identity', modak.mirror_identity(l.oid),
                          'bound', CASE WHEN length(l.relpartbound::text) < 4000
                                         AND EXISTS (SELECT FROM pg_inherits i
                                                      WHERE i.inhrelid = l.oid AND i.inhparent = c.oid)
                                   THEN l.relpartbound::text END,
                          'row_security', row_security_active(l.oid), 'readable', has_table_privilege(l.oid, 'SELECT'),
                          'file', CASE WHEN NOT told.all_events
                                         OR l.oid <> c.oid AND l.relkind = 'r' AND NOT EXISTS (
                                            SELECT FROM pg_trigger t WHERE t.tgrelid = l.oid
                                               AND t.tgname = 'mirror_pump_truncate' AND t.tgenabled = 'A')
                                       THEN pg_relation_filenode(l.oid)::bigint END)
                          ORDER BY l.oid)
                 FROM pg_class l JOIN pg_namespace ln ON ln.oid = l.relnamespace
                WHERE l.oid IN (SELECT r.relation FROM modak.mirror_tree(c.oid) r WHERE r.is_leaf)),
    'partition_key', (SELECT to_jsonb(p.partattrs::int2[]) FROM pg_partitioned_table p
                       WHERE p.partrelid = c.oid AND p.partstrat IN ('r', 'l') AND p.partnatts = 1 AND p.partexprs IS NULL
                         AND EXISTS (SELECT FROM pg_opclass o WHERE o.oid = p.partclass[0] AND o.opcdefault)
                         AND NOT EXISTS (SELECT FROM pg_collation l
                                          WHERE l.oid = p.partcollation[0] AND NOT l.collisdeterministic)
                         AND getdatabaseencoding() = 'UTF8' AND version() ~ ' (x86_64|aarch64|arm64|powerpc64le|riscv64)-'),
    'attached', (SELECT jsonb_object_agg(i.inhrelid::text, i.xmin::text)
                   FROM modak.mirror_tree(c.oid) r JOIN pg_inherits i ON i.inhrelid = r.relation WHERE r.relation <> c.oid),
    'types', (SELECT jsonb_object_agg(t.oid::text, CASE t.typtype
                         WHEN 'e' THEN (SELECT jsonb_object_agg(e.oid::text, e.enumlabel)
                                          FROM pg_enum e WHERE e.enumtypid = t.oid)
                         ELSE (SELECT jsonb_object_agg(a.attnum::text, a.atttypid::bigint)
                                 FROM pg_attribute a
                                WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END)
                FROM used u JOIN pg_type t ON t.oid = u.type WHERE t.typtype IN ('e', 'c')))
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN told
 WHERE c.oid = relation
$$;

-- Anybody may put a message into the stream; ours bear a seal that takes a secret, and is good in one transaction only.
CREATE TABLE modak.mirror_secret (
    secret      text        NOT NULL
);
COMMENT ON TABLE modak.mirror_secret IS 'What notes of schema changes are sealed with: whoever reads it can tell the mirror anything';
INSERT INTO modak.mirror_secret VALUES (gen_random_uuid()::text || gen_random_uuid()::text);

-- Puts a note into the stream, at its place in this transaction.
CREATE FUNCTION modak.mirror_message(content jsonb) RETURNS pg_lsn
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
-- The server sends a message's bytes as they are, whatever the database's encoding.
SELECT pg_logical_emit_message(true, 'mirror-pump', convert_to(
           encode(sha256(convert_to(secret || encode(sha256(convert_to(
               secret || pg_current_xact_id()::xid::text || ' ' || content::text, 'UTF8')), 'hex'), 'UTF8')), 'hex')
           || content::text, 'UTF8'))
  FROM modak.mirror_secret
$$;

-- What rows from before a command have in the columns that it added with a constant default (pg_attribute.attmissingval), as
-- the stream prints it, by attribute number: of columns that `former` has not, and only if every leaf has the same. Of types
-- that print alike in any session, and no longer than a note should be.
CREATE FUNCTION modak.mirror_missing(root oid, former jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET array_nulls = on AS $$
WITH leaves AS (SELECT r.relation FROM modak.mirror_tree(root) r WHERE r.is_leaf)
SELECT coalesce(jsonb_object_agg(found.attnum::text, found.texts[1]), '{}')
  FROM (SELECT a.attnum, array_agg(DISTINCT (l.attmissingval::text::text[])[1]) AS texts, count(*) AS leaves
          FROM pg_attribute a
          JOIN pg_type t ON t.oid = a.atttypid
          JOIN pg_attribute l ON l.attname = a.attname AND l.attrelid IN (SELECT relation FROM leaves) AND l.atthasmissing
               AND l.atttypid = a.atttypid AND l.atttypmod = a.atttypmod AND NOT l.attisdropped
         WHERE a.attrelid = root AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
           AND NOT EXISTS (SELECT FROM jsonb_array_elements(coalesce(nullif(former -> 'columns', 'null'), '[]')) f
                            WHERE (f ->> 'attnum')::int = a.attnum)
           AND EXISTS (SELECT FROM pg_type e
                        WHERE e.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype WHEN t.typcategory = 'A' THEN t.typelem
                                           ELSE t.oid END
                          AND (e.typtype = 'e' OR e.oid IN (
                               'bool'::regtype, 'bytea'::regtype, '"char"'::regtype, 'name'::regtype, 'int8'::regtype,
                               'int2'::regtype, 'int4'::regtype, 'text'::regtype, 'oid'::regtype, 'json'::regtype,
                               'float4'::regtype, 'float8'::regtype, 'inet'::regtype, 'cidr'::regtype, 'macaddr'::regtype,
                               'bpchar'::regtype, 'varchar'::regtype, 'date'::regtype, 'time'::regtype,
                               'timestamp'::regtype, 'timestamptz'::regtype, 'interval'::regtype, 'timetz'::regtype,
                               'bit'::regtype, 'varbit'::regtype, 'numeric'::regtype, 'uuid'::regtype, 'jsonb'::regtype)))
         GROUP BY a.attnum) found
 WHERE found.leaves = (SELECT count(*) FROM leaves) AND cardinality(found.texts) = 1 AND length(found.texts[1]) <= 8192
$$;

-- Tells the stream what one table is like now, in a transactional message. `exact`: within the transaction that changed
-- it, right behind the change; not said while an event trigger is off, which may have had more to tell. New partitions that hold a page are named, and those whose file was known and is another
-- now: their rows are not in the stream.
CREATE FUNCTION modak.mirror_tell(told_id bigint, present jsonb, exact boolean, settled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former jsonb;
    added jsonb;
    missing jsonb := '{}';
    one record;
BEGIN
    SELECT shape INTO former FROM modak.mirror_shapes WHERE table_id = told_id;
    UPDATE modak.mirror_shapes SET shape = present, told_at = now() WHERE table_id = told_id;
    -- Corrections name columns as the heap does: with those that were renamed, and without those that are gone.
    FOR one IN
        SELECT f ->> 'name' AS former_name, p ->> 'name' AS name
          FROM jsonb_array_elements(coalesce(nullif(former -> 'columns', 'null'), '[]')) f
          LEFT JOIN jsonb_array_elements(coalesce(nullif(present -> 'columns', 'null'), '[]')) p
            ON p -> 'attnum' = f -> 'attnum'
         WHERE present IS NOT NULL AND p ->> 'name' IS DISTINCT FROM f ->> 'name'
         ORDER BY p ->> 'name' NULLS FIRST
    LOOP
        UPDATE modak.delta
           SET payload = payload - one.former_name
                         || CASE WHEN one.name IS NULL THEN '{}'
                                 ELSE jsonb_build_object(one.name, payload -> one.former_name) END
         WHERE table_id = told_id AND payload ? one.former_name AND (one.name IS NULL OR NOT payload ? one.name);
        UPDATE modak.mirror_captured
           SET payload = payload - one.former_name
                         || CASE WHEN one.name IS NULL THEN '{}'
                                 ELSE jsonb_build_object(one.name, payload -> one.former_name) END
         WHERE table_id = told_id AND payload ? one.former_name AND (one.name IS NULL OR NOT payload ? one.name);
    END LOOP;
    IF present IS NOT NULL THEN
        -- Columns that are new, and NULL in every row so far.
        SELECT coalesce(jsonb_object_agg(p ->> 'attnum', NULL::text), '{}') INTO added
          FROM jsonb_array_elements(nullif(present -> 'columns', 'null')) p
          JOIN pg_type t ON t.oid = (p ->> 'type')::oid
         WHERE former -> 'columns' <> 'null' AND NOT ((p ->> 'computed')::boolean OR (p ->> 'filled')::boolean)
           AND t.typdefault IS NULL
           AND NOT EXISTS (SELECT FROM jsonb_array_elements(former -> 'columns') f WHERE f -> 'attnum' = p -> 'attnum');
        IF exact THEN
            missing := added || modak.mirror_missing(told_id::oid, former);
        END IF;
        -- Corrections name new columns too, with what rows from before have there.
        PERFORM modak.complete_corrections(told_id, jsonb_agg(jsonb_build_object(
                    'attnum', p -> 'attnum', 'type', p -> 'type', 'modifier', p -> 'modifier',
                    'text', missing -> (p ->> 'attnum'))), true)
           FROM jsonb_array_elements(nullif(present -> 'columns', 'null')) p
          WHERE (added || missing) ? (p ->> 'attnum')
            AND EXISTS (SELECT FROM modak.delta d WHERE d.table_id = told_id
                        UNION ALL SELECT FROM modak.mirror_captured c WHERE c.table_id = told_id)
         HAVING count(*) > 0;
    END IF;
    PERFORM modak.mirror_message(jsonb_build_object(
        'table', told_id, 'exact', exact AND modak.mirror_events(), 'settled', settled, 'shape', present,
        'missing', missing,
        'filled', (SELECT coalesce(jsonb_agg(l -> 'id'), '[]')
                     FROM jsonb_array_elements(coalesce(nullif(present -> 'leaves', 'null'), '[]')) l
                     LEFT JOIN jsonb_array_elements(coalesce(nullif(former -> 'leaves', 'null'), '[]')) f
                       ON f -> 'id' = l -> 'id'
                    WHERE CASE WHEN f -> 'id' IS NULL THEN exact AND pg_relation_size((l ->> 'id')::oid) > 0
                               ELSE (f ->> 'file')::bigint <> pg_relation_filenode((l ->> 'id')::oid)::bigint END)));
END $$;

-- Looks for tables that are not what the stream was told, and tells it. Outside the transaction of the change, a lock
-- makes sure that no other change of the table is under way. One that we may not lock cannot be mirrored any more, and is
-- set aside for what is told. `forced` ones are told in any case, as `settled`: every transaction that wrote to them before
-- the last note has ended.
CREATE FUNCTION modak.mirror_note(exact boolean, only_ids bigint[], forced bigint[]) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    present jsonb;
    told int := 0;
BEGIN
    FOR one IN
        SELECT s.table_id, s.shape AS former, modak.mirror_shape(s.table_id::oid) AS present
          FROM modak.mirror_shapes s WHERE only_ids IS NULL OR s.table_id = ANY (only_ids) ORDER BY s.table_id
    LOOP
        CONTINUE WHEN one.former IS NOT DISTINCT FROM one.present AND NOT one.table_id = ANY (forced);
        present := one.present;
        IF present IS NOT NULL AND NOT exact AND has_schema_privilege(present ->> 'schema', 'USAGE')
           AND has_table_privilege(one.table_id::oid, 'SELECT') THEN
            EXECUTE format('LOCK TABLE %I.%I IN ACCESS SHARE MODE', present ->> 'schema', present ->> 'name');
            SELECT modak.mirror_shape(one.table_id::oid) INTO present;
        END IF;
        -- Types alone change without a lock on the table: a change of theirs that nobody was told of is another one.
        PERFORM modak.mirror_tell(one.table_id, present, exact, one.table_id = ANY (forced)
                                  AND one.former -> 'types' IS NOT DISTINCT FROM present -> 'types');
        told := told + 1;
    END LOOP;
    RETURN told;
END $$;

-- TRUNCATE of one partition is not in the stream of the partitioned table: a trigger puts a message there. It does not ask
-- whether the table is mirrored: a transaction whose snapshot is older than the registration would not see that.
CREATE FUNCTION modak.mirror_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mirrored bigint := pg_partition_root(TG_RELID)::oid::bigint;
BEGIN
    IF mirrored IS NOT NULL THEN
        PERFORM modak.mirror_message(jsonb_build_object('table', mirrored, 'truncated', TG_RELID::bigint,
                                                            'now', modak.mirror_events()));
    END IF;
    RETURN NULL;
END $$;

-- Has a TRUNCATE of single partitions told; how many could not be watched now (theirs shows by another file, later). Within
-- a command that `touched` certain relations, only those and new ones: others it may have no lock on. ALTER TABLE ...
-- DISABLE TRIGGER is undone within its own command. Whether a partition that was unwatched otherwise was truncated, nobody
-- knows: so that is told. Partitions that are not ours are left alone.
CREATE FUNCTION modak.mirror_watch(root oid, touched oid[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    one record;
    missed int := 0;
BEGIN
    FOR one IN
        SELECT c.oid AS leaf, t.oid IS NOT NULL AS made,
               coalesce(told.watched, false) AND NOT coalesce(t.oid IS NOT NULL AND c.oid = ANY (touched), false) AS unseen
          FROM modak.mirror_tree(root) r
          JOIN pg_class c ON c.oid = r.relation
          LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'mirror_pump_truncate'
          LEFT JOIN (SELECT (l ->> 'id')::oid AS leaf, l ->> 'file' IS NULL AS watched
                       FROM modak.mirror_shapes s
                      CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(s.shape -> 'leaves', 'null'), '[]')) l
                      WHERE s.table_id = root::bigint) told ON told.leaf = c.oid
         WHERE c.oid <> root AND c.relkind = 'r' AND t.tgenabled IS DISTINCT FROM 'A' AND pg_has_role(c.relowner, 'USAGE')
           AND (touched IS NULL OR c.oid = ANY (touched) OR told.leaf IS NULL)
    LOOP
        BEGIN
            -- Known to mirror_ddl() and nobody else: the shape is noted once, not for each partition.
            PERFORM set_config('modak.watching', secret, true) FROM modak.mirror_secret;
            IF NOT one.made THEN
                EXECUTE format('CREATE TRIGGER mirror_pump_truncate AFTER TRUNCATE ON %s'
                               ' FOR EACH STATEMENT EXECUTE FUNCTION modak.mirror_truncated()', one.leaf::regclass);
            END IF;
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER mirror_pump_truncate', one.leaf::regclass);
            IF one.unseen THEN
                PERFORM modak.mirror_message(jsonb_build_object('table', root::bigint, 'truncated', one.leaf::bigint));
            END IF;
            PERFORM set_config('modak.watching', '', true);
        EXCEPTION WHEN OTHERS THEN
            missed := missed + 1;
        END;
    END LOOP;
    RETURN missed;
END $$;

-- For an event trigger that failed: says that something about these tables is other than it was, so that they are not
-- applied any further before they were described.
CREATE FUNCTION modak.mirror_alarm(concerned bigint[]) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT count(modak.mirror_message(jsonb_build_object('table', table_id, 'rewritten', 4)))
  FROM modak.mirror_shapes WHERE concerned IS NULL OR table_id = ANY (concerned)
$$;

-- The event triggers' functions. A user's statement must not fail for our sake.
CREATE FUNCTION modak.mirror_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    concerned bigint[];
    touched oid[];
    row_types text[];
BEGIN
    IF current_setting('modak.watching', true) <> '' THEN
        IF current_setting('modak.watching') = (SELECT secret FROM modak.mirror_secret) THEN
            RETURN;
        END IF;
    END IF;
    IF tg_tag IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE SCHEMA') THEN
        SELECT array_agg(d.objid) INTO touched
          FROM pg_event_trigger_ddl_commands() d WHERE d.classid = 'pg_class'::regclass;
        row_types := ARRAY(
            SELECT t.oid::text FROM pg_class c JOIN pg_type t ON t.oid = c.reltype
             WHERE c.oid = ANY (touched) AND EXISTS (
                SELECT FROM pg_depend d
                 WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray) AND d.deptype = 'n'));
        -- What they are, what they are partitions of, tables that became their partitions, and those that have columns of
        -- their row types (which are looked for only where something depends on these).
        SELECT array_agg(s.table_id) INTO concerned
          FROM modak.mirror_shapes s
         WHERE s.table_id IN (
             SELECT relation FROM unnest(touched) relation
             UNION ALL SELECT pg_partition_root(relation)::oid FROM unnest(touched) relation
             UNION ALL SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = ANY (touched)
             UNION ALL SELECT tree.relation FROM pg_class c CROSS JOIN LATERAL modak.mirror_tree(c.oid) tree
                        WHERE c.oid = ANY (touched) AND c.relkind = 'p')
            OR row_types <> '{}' AND s.shape -> 'types' ?| row_types;
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            -- Its snapshot may be older than a registration. Messages about tables that are not mirrored are ignored.
            PERFORM modak.mirror_message(jsonb_build_object('table', unseen.id, 'rewritten', 4))
               FROM (SELECT DISTINCT coalesce(pg_partition_root(relation)::oid, relation)::bigint AS id
                       FROM unnest(touched) relation) unseen
              WHERE NOT EXISTS (SELECT FROM modak.mirror_shapes s WHERE s.table_id = unseen.id);
        END IF;
        IF concerned IS NULL THEN
            RETURN;
        END IF;
        PERFORM modak.mirror_watch(table_id::oid, touched) FROM unnest(concerned) table_id;
    END IF;
    PERFORM modak.mirror_note(true, concerned, '{}');
EXCEPTION WHEN OTHERS THEN
    PERFORM modak.mirror_alarm(concerned);
    RAISE WARNING 'the mirror could not be told of this change and copies the table again: %', SQLERRM;
END $$;

CREATE FUNCTION modak.mirror_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    concerned bigint[];
BEGIN
    SELECT array_agg(DISTINCT s.table_id) INTO concerned
      FROM pg_event_trigger_dropped_objects() d
      JOIN modak.mirror_shapes s
        ON s.table_id IN (d.objid::bigint, pg_partition_root(d.objid)::oid::bigint)
        OR (s.shape -> 'identity' ->> 'index')::bigint = d.objid::bigint
        OR EXISTS (SELECT FROM jsonb_array_elements(coalesce(nullif(s.shape -> 'leaves', 'null'), '[]')) l
                    WHERE d.objid::bigint IN ((l ->> 'id')::bigint, (l -> 'identity' ->> 'index')::bigint))
     WHERE d.classid = 'pg_class'::regclass AND NOT d.is_temporary;
    IF concerned IS NOT NULL THEN
        PERFORM modak.mirror_note(true, concerned, '{}');
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM modak.mirror_alarm(concerned);
    RAISE WARNING 'the mirror could not be told of this change and copies the table again: %', SQLERRM;
END $$;

CREATE FUNCTION modak.mirror_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rewritten oid := pg_event_trigger_table_rewrite_oid();
    mirrored bigint := coalesce(pg_partition_root(rewritten)::oid, rewritten)::bigint;
BEGIN
    -- Of any table: as modak.mirror_truncated().
    PERFORM modak.mirror_message(jsonb_build_object(
        'table', mirrored, 'rewritten', pg_event_trigger_table_rewrite_reason()));
END $$;

REVOKE EXECUTE ON FUNCTION modak.mirror_tell(bigint, jsonb, boolean, boolean), modak.mirror_missing(oid, jsonb), modak.mirror_note(boolean, bigint[], bigint[]),
    modak.mirror_alarm(bigint[]), modak.mirror_watch(oid, oid[]), modak.mirror_message(jsonb) FROM PUBLIC;

-- Takes a relation out of a publication, whatever it is called: not every database's names can be told to a client.
CREATE FUNCTION modak.mirror_unpublish(publication text, relation bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('ALTER PUBLICATION %I DROP TABLE %s', publication, relation::oid::regclass);
END $$;

-- How the mirror's tables are published at present: what changes with every change of the publication's settings or of the
-- table's part in it, also if it is changed back, and whether all rows and columns are (filters exist from version 15 on).
CREATE FUNCTION modak.mirror_published(slot text) RETURNS TABLE (table_id bigint, present text, whole boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT m.table_id, concat_ws(' ', p.oid, p.xmin, r.oid),
       r.oid IS NOT NULL AND to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL
  FROM modak.mirror_tables m
  JOIN modak.mirror_slots s USING (slot_name)
  JOIN pg_class c ON c.oid = m.table_id::oid
  LEFT JOIN pg_publication p ON p.pubname = s.publication_name
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE m.slot_name = mirror_published.slot AND m.state NOT IN ('failed', 'dropped')
$$;

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
COMMENT ON TABLE modak.mirror_captured IS 'Changes of partitions that are being sealed; they become corrections when T passes';
CREATE INDEX mirror_captured_partition_idx ON modak.mirror_captured (table_id, partition_id);

-- Connectors of others replace rows here and do not know of folded_sequence: what is new is not folded.
CREATE FUNCTION modak.delta_renewed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.folded_sequence := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER delta_renewed BEFORE UPDATE ON modak.delta FOR EACH ROW
    WHEN (NEW.version IS DISTINCT FROM OLD.version AND NEW.folded_sequence IS NOT NULL)
    EXECUTE FUNCTION modak.delta_renewed();

-- A tier key on the catalog's axis: integers as they are, times in microseconds and dates in days since 1970-01-01 (UTC;
-- a timestamp as if it were). Infinities are the ends of the axis.
CREATE FUNCTION modak.tier_value(value bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT value';
CREATE FUNCTION modak.tier_value(value timestamp) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE value WHEN 'infinity' THEN 9223372036854775807 WHEN '-infinity' THEN '-9223372036854775808'::bigint
            ELSE least(extract(epoch FROM value) * 1000000, 9223372036854775806)::bigint END
$$;
CREATE FUNCTION modak.tier_value(value timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT modak.tier_value(value AT TIME ZONE 'UTC')
$$;
CREATE FUNCTION modak.tier_value(value date) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE value WHEN 'infinity' THEN 9223372036854775807 WHEN '-infinity' THEN '-9223372036854775808'::bigint
            ELSE (value - date '1970-01-01')::bigint END
$$;

-- T, or NULL as long as no row can be below it: T of a time key begins with the year 1 (mirror_pump.model.Tier.moved).
CREATE FUNCTION modak.moved_cut(id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT c.tier_key_hi FROM modak.cutline c JOIN modak.tables t USING (table_id)
 WHERE c.table_id = id
   AND c.tier_key_hi > CASE WHEN t.tier_key_type = 'date' THEN -719162
                            WHEN t.tier_key_type LIKE 'timestamp%' THEN -62135596800000000
                            ELSE -9223372036854775808 END
$$;

-- Whether a tier value is infinity's, which the lake cannot hold. Above T the stream finds that out.
CREATE FUNCTION modak.is_infinite(id bigint, tier bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT tier = -9223372036854775808
       AND EXISTS (SELECT FROM modak.tables t WHERE t.table_id = id AND t.tier_key_type <> 'bigint')
$$;

-- The seam protocol's key: one part as it is, several joined by chr(31).
CREATE FUNCTION modak.canonical_pk(VARIADIC parts text[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN cardinality(parts) = 1 THEN parts[1]
            ELSE (SELECT string_agg(replace(replace(part, '\', '\\'), chr(31), '\' || chr(31)), chr(31) ORDER BY place)
                    FROM unnest(parts) WITH ORDINALITY AS p(part, place)) END
$$;

-- SQL that gives the payload of a row r: of the columns `numbers` (NULL: all), as an expression, and the FROM items behind r
-- that this needs.
-- A value is in the payload as to_jsonb() has it if that leads back to it, else as the text that its type prints:
-- json's spaces, -0, an array's odd bounds, and whatever the lake holds as text anyway.
CREATE FUNCTION modak.row_payload(relation oid, numbers int[], OUT expression text, OUT further text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    listed text;
    checked text;
    read_again text;
BEGIN
    WITH RECURSIVE reduced(attnum, type, typtype, category) AS (
        SELECT a.attnum, t.oid, t.typtype, t.typcategory FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
           AND (a.attgenerated = '' OR a.attgenerated = 's' AND modak.mirror_sends_generated(relation))
           AND (numbers IS NULL OR a.attnum = ANY (numbers))
        UNION ALL
        SELECT r.attnum, t.oid, t.typtype, t.typcategory
          FROM reduced r JOIN pg_type b ON b.oid = r.type
          JOIN pg_type t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                         WHEN b.typcategory = 'A' THEN b.typelem END),
    judged AS (
        SELECT r.attnum,
               bool_or(r.typtype = 'c' OR r.type IN (114, 3802, 22, 30)
                       OR r.type >= 16384 AND EXISTS (SELECT FROM pg_cast c WHERE c.castsource = r.type
                                                         AND c.casttarget IN (114, 3802)))
               -- Arrays within arrays; int2vector and oidvector are no JSON arrays either.
               OR count(*) FILTER (WHERE r.category = 'A') > 1 AS as_text,
               bool_and(r.type IN (16, 17, 20, 21, 23, 25, 1043, 1700, 2950)) AS safe
          FROM reduced r GROUP BY r.attnum)
    SELECT string_agg(CASE WHEN j.as_text
                           THEN format('CASE WHEN r.%1$I IS DISTINCT FROM NULL THEN format(''%%s'', r.%1$I) END AS %1$I', a.attname)
                           ELSE format('r.%I', a.attname) END, ', ' ORDER BY a.attnum),
           string_agg(format('(%L, format(''%%s'', r.%I), format(''%%s'', p.%2$I))', a.attname, a.attname), ', '
                      ORDER BY a.attnum) FILTER (WHERE NOT (j.as_text OR j.safe)),
           string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
      INTO listed, checked, read_again
      FROM judged j JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = j.attnum;
    expression := CASE WHEN checked IS NULL THEN 'i.payload' ELSE
        'i.payload || (SELECT coalesce(jsonb_object_agg(c.name, c.value), ''{}'') FROM (VALUES ' || checked
        || ') AS c(name, value, again) WHERE c.value IS DISTINCT FROM c.again)' END;
    further := format(' CROSS JOIN LATERAL (SELECT to_jsonb(s) FROM (SELECT %s) s) AS i(payload)', listed)
        || CASE WHEN checked IS NULL THEN '' WHEN numbers IS NULL THEN
           format(' CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, i.payload) p', relation::regclass)
           -- Of a whole row the other columns would be NULL, which their types may not allow.
           ELSE format(' CROSS JOIN LATERAL jsonb_to_record(i.payload) AS p(%s)', read_again) END;
END $$;

-- SQL that gives, for a row of `relation` as $1, its tier key's value, its canonical key, and its payload: the whole row,
-- or the key columns alone. `keys` are attribute numbers in the order of the key.
CREATE FUNCTION modak.row_image(relation oid, tier int, keys int[], whole boolean) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text;
    tier_name text;
BEGIN
    SELECT string_agg(format(CASE a.atttypid WHEN 16 THEN 'r.%I::text' ELSE 'format(''%%s'', r.%I)' END, a.attname), ', '
                      ORDER BY k.place)
      INTO parts
      FROM unnest(keys) WITH ORDINALITY AS k(attnum, place)
      JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = k.attnum;
    SELECT quote_ident(attname) INTO tier_name FROM pg_attribute WHERE attrelid = relation AND attnum = tier;
    RETURN (SELECT format('SELECT modak.tier_value(r.%s), modak.canonical_pk(%s), ', tier_name, parts)
                   || p.expression || ' FROM (SELECT ($1).*) r' || p.further
              FROM modak.row_payload(relation, CASE WHEN NOT whole THEN keys END) p);
END $$;

-- Gives corrections that were captured before columns were added what every row from before has there. `columns`: an array of
-- {attnum, type, modifier, text}, the last as the column's type prints it (null: NULL). A correction that is captured
-- later names all columns, so one that lacks a column is from before. `waiting`: also for transactions that have one in hand.
CREATE FUNCTION modak.complete_corrections(id bigint, columns jsonb, waiting boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    given text;
    numbers int[];
    names text[];
    image jsonb;
BEGIN
    SELECT string_agg(format('%L::%s AS %I', c.text, format_type(a.atttypid, a.atttypmod), a.attname), ', '),
           array_agg(a.attnum), array_agg(a.attname::text)
      INTO given, numbers, names
      FROM jsonb_to_recordset(columns) AS c(attnum int, type bigint, modifier int, text text)
      JOIN pg_attribute a ON a.attrelid = id::oid AND a.attnum = c.attnum AND NOT a.attisdropped
           AND a.atttypid = c.type::oid AND a.atttypmod = c.modifier;
    IF given IS NULL THEN
        RETURN;
    END IF;
    EXECUTE (SELECT 'SELECT ' || p.expression || ' FROM (SELECT ' || given || ') r' || p.further
               FROM modak.row_payload(id::oid, numbers) p) INTO image;
    IF waiting THEN
        UPDATE modak.delta d SET payload = image || d.payload
         WHERE d.table_id = id AND d.op = 0 AND NOT d.payload ?& names;
        UPDATE modak.mirror_captured d SET payload = image || d.payload
         WHERE d.table_id = id AND d.op = 0 AND NOT d.payload ?& names;
    ELSE
        UPDATE modak.delta d SET payload = image || d.payload
         WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM modak.delta o
                                    WHERE o.table_id = id AND o.op = 0 AND NOT o.payload ?& names
                                      FOR UPDATE SKIP LOCKED));
        UPDATE modak.mirror_captured d SET payload = image || d.payload
         WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM modak.mirror_captured o
                                    WHERE o.table_id = id AND o.op = 0 AND NOT o.payload ?& names
                                      FOR UPDATE SKIP LOCKED));
    END IF;
END $$;

-- The attribute numbers of the tier key and of the key's columns, in the key's order, in `leaf`: a partition of `root`, or
-- that itself. The catalog has names as of F; the columns may have got others since, but keep their numbers.
CREATE FUNCTION modak.key_numbers(root oid, leaf oid, OUT tier int, OUT keys int[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT min(l.attnum) FILTER (WHERE k.name = t.tier_key_col), array_agg(l.attnum ORDER BY k.place) INTO tier, keys
      FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
     CROSS JOIN unnest(t.primary_key_cols) WITH ORDINALITY AS k(name, place)
      LEFT JOIN jsonb_to_recordset(m.columns) AS c(attnum int, name text) ON c.name = k.name
      LEFT JOIN pg_attribute r ON r.attrelid = root AND r.attnum = c.attnum AND NOT r.attisdropped
      LEFT JOIN pg_attribute l ON l.attrelid = leaf AND l.attname = r.attname AND NOT l.attisdropped
     WHERE t.table_id = root::bigint;
    IF tier IS NULL OR array_position(keys, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the mirror has not followed a change of the key of %s yet', root::regclass);
    END IF;
END $$;

-- The condition under which row `t` of `leaf` has the key of the row `other`, by the operators of the key's index: those of
-- an extension's types are in whatever schema that has. Those of enums and composites take no domains.
CREATE FUNCTION modak.key_match(leaf oid, keys int[], other text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN string_agg(format('t.%1$I%2$s OPERATOR(%3$I.%4$s) %5$s.%1$I%2$s', a.attname, '::' || b.name,
                             coalesce(o.nspname, 'pg_catalog'), coalesce(o.oprname, '='), other), ' AND ')
      FROM pg_attribute a
      LEFT JOIN LATERAL (
           WITH RECURSIVE reduced(type, base) AS (
               SELECT t.oid, t.typbasetype FROM pg_type t WHERE a.atttypid >= 16384 AND t.oid = a.atttypid AND t.typtype = 'd'
               UNION ALL SELECT t.oid, t.typbasetype FROM reduced r JOIN pg_type t ON t.oid = r.base)
           SELECT format_type(r.type, -1) AS name FROM reduced r WHERE r.base = 0) b ON true
      LEFT JOIN LATERAL (
           SELECT n.nspname, o.oprname
             FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) AS k(attnum, class)
             JOIN pg_opclass c ON c.oid = k.class
             JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype
                  AND m.amoprighttype = c.opcintype AND m.amopmethod = 403 AND m.amopstrategy = 3
             JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
            WHERE a.atttypid >= 16384 AND i.indrelid = leaf AND i.indisunique AND i.indisvalid AND k.attnum = a.attnum
            LIMIT 1) o ON true
     WHERE a.attrelid = leaf AND a.attnum = ANY (keys);
END $$;

-- SQL that gives, for a row of `leaf` as $1, what the partition holds under its key now: tier value, key, op, and the payload,
-- of a whole row (0), or of the key alone where there is none (1). A trigger's NEW may be outdated: other triggers change
-- the row again, and what they do is captured before what they were called for.
CREATE FUNCTION modak.held_image(leaf oid, tier int, keys int[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('SELECT k.tier, k.pk, CASE WHEN h.pk = k.pk THEN 0 ELSE 1 END::smallint AS op,'
                  ' CASE WHEN h.pk = k.pk THEN h.image ELSE k.image END AS image FROM (%s OFFSET 0) AS k(tier, pk, image)'
                  ' LEFT JOIN LATERAL (SELECT i.pk, i.image FROM ONLY %s t CROSS JOIN LATERAL (%s) AS i(tier, pk, image)'
                  ' WHERE %s OFFSET 0) h ON true',
                  modak.row_image(leaf, tier, keys, false), leaf::regclass,
                  replace(modak.row_image(leaf, tier, keys, true), '($1).*', 't.*'), modak.key_match(leaf, keys, '($1)'));
END $$;

CREATE FUNCTION modak.put_delta(id bigint, key text, what smallint, tier bigint, image jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
-- The version is drawn under the row's lock, so that versions order the writes of a key.
INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
VALUES (id, key, what, tier, nextval('modak.delta_version'), image)
ON CONFLICT (table_id, pk) DO UPDATE
   SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
       payload = excluded.payload, updated_at = now(), folded_sequence = NULL
$$;

CREATE FUNCTION modak.put_captured(id bigint, held_by text, key text, what smallint, tier bigint, image jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO modak.mirror_captured AS d (table_id, partition_id, pk, op, tier_key, version, payload)
VALUES (id, held_by, key, what, tier, nextval('modak.delta_version'), image)
ON CONFLICT (table_id, pk) DO UPDATE
   SET partition_id = excluded.partition_id, op = excluded.op, tier_key = excluded.tier_key,
       version = nextval('modak.delta_version'), payload = excluded.payload
$$;

-- A transaction whose snapshot is older than a column of the row would leave it out of the row's payload: catalogs are read by
-- that snapshot, rows as they are.
CREATE FUNCTION modak.refuse_outdated(leaf oid, given jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
       AND EXISTS (SELECT FROM jsonb_object_keys(given) AS k(name)
                    WHERE NOT EXISTS (SELECT FROM pg_attribute a
                                       WHERE a.attrelid = leaf AND a.attname = k.name AND a.attnum > 0
                                         AND NOT a.attisdropped)) THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
            MESSAGE = 'could not serialize access due to concurrent ALTER TABLE',
            HINT = 'The transaction might succeed if retried.';
    END IF;
END $$;

-- The triggers' arguments: table_id, partition_id, and the partition's attribute numbers of tier key and key columns.
-- Attribute numbers survive renames. A partition that was detached has no part in the table any more. Every value is printed
-- under these settings, as the mirror's own connections do. Where row security would hide rows, they fail.
CREATE FUNCTION modak.capture_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    held text;
    former record;
    one record;
    key text;
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    PERFORM modak.refuse_outdated(TG_RELID, to_jsonb(coalesce(NEW, OLD)));
    held := modak.held_image(TG_RELID, TG_ARGV[2]::int, TG_ARGV[3]::int[]);
    IF TG_OP <> 'DELETE' THEN
        EXECUTE held INTO one USING NEW;
        key := one.pk;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE held INTO former USING OLD;
        IF key IS DISTINCT FROM former.pk THEN
            PERFORM modak.put_captured(TG_ARGV[0]::bigint, TG_ARGV[1], former.pk, former.op, former.tier, former.image);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM modak.put_captured(TG_ARGV[0]::bigint, TG_ARGV[1], one.pk, one.op, one.tier, one.image);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION modak.cold_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    held text;
    former record;
    one record;
    key text;
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    PERFORM modak.refuse_outdated(TG_RELID, to_jsonb(coalesce(NEW, OLD)));
    held := modak.held_image(TG_RELID, TG_ARGV[2]::int, TG_ARGV[3]::int[]);
    IF TG_OP <> 'DELETE' THEN
        EXECUTE held INTO one USING NEW;
        key := one.pk;
        IF one.op = 0 AND modak.is_infinite(TG_ARGV[0]::bigint, one.tier) THEN
            RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                MESSAGE = format('a row of "%s" below T has a finite tier key', TG_TABLE_NAME);
        END IF;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE held INTO former USING OLD;
        IF key IS DISTINCT FROM former.pk THEN
            PERFORM modak.put_delta(TG_ARGV[0]::bigint, former.pk, former.op, former.tier, former.image);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM modak.put_delta(TG_ARGV[0]::bigint, one.pk, one.op, one.tier, one.image);
    END IF;
    RETURN NULL;
END $$;

-- What was captured before is void. It is not deleted: a REPEATABLE READ transaction does not see all of it.
CREATE FUNCTION modak.capture_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET sealed_lsn = NULL, captured_after = nextval('modak.delta_version')
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1];
    RETURN NULL;
END $$;

-- A TRUNCATE concerns rows at or above T: those of this partition stay in the lake.
CREATE FUNCTION modak.cold_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET truncated = true
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1] AND NOT truncated;
    RETURN NULL;
END $$;

-- On the DEFAULT partition: a row below T goes to modak.delta, as other triggers leave it, any other belongs nowhere.
CREATE FUNCTION modak.route_old_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    keys int[] := TG_ARGV[3]::int[];
    matched text := modak.key_match(TG_RELID, keys, '($1)');
    tier bigint;
    key text;
    image jsonb;
    kept boolean;
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND NOT EXISTS (
            SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attnum = ANY (keys)
               AND to_jsonb(OLD) -> a.attname::text IS DISTINCT FROM to_jsonb(NEW) -> a.attname::text) THEN
        -- By a trigger that the INSERT fired before this one, which is still to come.
        RETURN NULL;
    END IF;
    PERFORM modak.refuse_outdated(TG_RELID, to_jsonb(NEW));
    EXECUTE format('WITH gone AS (DELETE FROM ONLY %s t WHERE %s RETURNING t.*)'
                   ' SELECT i.tier, i.pk, i.image FROM gone g CROSS JOIN LATERAL (%s) AS i(tier, pk, image)', TG_RELID::regclass,
                   matched, replace(modak.row_image(TG_RELID, TG_ARGV[2]::int, keys, true), '($1).*', 'g.*'))
       INTO tier, key, image USING NEW;
    IF tier IS NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s t WHERE %s)', TG_RELID::regclass, matched)
           INTO kept USING NEW;
        IF kept THEN
            RAISE EXCEPTION USING ERRCODE = 'triggered_data_change_violation',
                MESSAGE = format('the row is below T, and a DELETE trigger keeps it in %s', TG_RELID::regclass),
                HINT = 'create that trigger with WHEN (pg_trigger_depth() = 0): rows leave the DEFAULT partition by a DELETE',
                SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
        END IF;
        RETURN NULL;
    END IF;
    IF modak.is_infinite(TG_ARGV[0]::bigint, tier) OR tier < modak.moved_cut(TG_ARGV[0]::bigint) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('no partition of relation "%s" found for row',
                             (SELECT relname FROM pg_class WHERE oid = pg_partition_root(TG_RELID))),
            DETAIL = format('The row''s key is %s.', image -> (SELECT attname::text FROM pg_attribute
                             WHERE attrelid = TG_RELID AND attnum = TG_ARGV[2]::int)),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    PERFORM modak.put_delta(TG_ARGV[0]::bigint, key, 0::smallint, tier, image);
    RETURN NULL;
END $$;

-- Puts a partition's triggers in place, or others in the place of those that it has: 'capture' while it is being sealed,
-- 'cold' below T, 'default' on the DEFAULT partition. Replacing takes SHARE ROW EXCLUSIVE, as creating does.
-- Everything under one name, so that what comes takes the place of what was.
CREATE FUNCTION modak.retain_triggers(root oid, leaf oid, held_by text, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments text;
    row_function text := CASE kind WHEN 'capture' THEN 'capture_row' WHEN 'cold' THEN 'cold_row'
                                   WHEN 'default' THEN 'route_old_row' END;
    truncate_function text := CASE kind WHEN 'capture' THEN 'capture_truncate' ELSE 'cold_truncate' END;
    name text;
BEGIN
    SELECT format('%L, %L, %L, %L', root::bigint, held_by, n.tier, n.keys) INTO arguments FROM modak.key_numbers(root, leaf) n;
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_row AFTER %s ON %s FOR EACH ROW EXECUTE FUNCTION modak.%I(%s)',
                   CASE kind WHEN 'default' THEN 'INSERT OR UPDATE' ELSE 'INSERT OR UPDATE OR DELETE' END, leaf::regclass,
                   row_function, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass, truncate_function, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER mirror_pump_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass,
                   CASE kind WHEN 'capture' THEN 'mirror_truncated' ELSE 'cold_truncate' END, arguments);
    FOREACH name IN ARRAY ARRAY['zz_modak_row', 'zz_modak_truncate', 'mirror_pump_truncate'] LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', leaf::regclass, name);
    END LOOP;
END $$;

CREATE FUNCTION modak.mirror_unwatch(root oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT t.tgrelid::regclass AS leaf, t.tgname
          FROM modak.mirror_tree(root) r JOIN pg_trigger t ON t.tgrelid = r.relation
         WHERE t.tgname IN ('mirror_pump_truncate', 'zz_modak_row', 'zz_modak_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', one.tgname, one.leaf);
    END LOOP;
END $$;

-- The partitions of a table that is partitioned by range of one column, with their bounds as tier values. Waits for whoever
-- alters the table or one of them: to print a bound, Postgres locks it.
CREATE FUNCTION modak.tier_partitions(root oid) RETURNS TABLE (relation oid, lo bigint, hi bigint, is_default boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET timezone = 'UTC' AS $$
DECLARE
    bound text;
    parts text[];
    type text := (SELECT format_type(a.atttypid, NULL) FROM pg_partitioned_table p
                    JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = (p.partattrs::int2[])[0]
                   WHERE p.partrelid = root);
BEGIN
    FOR relation, bound IN
        SELECT c.oid, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = root AND c.relispartition AND NOT i.inhdetachpending
    LOOP
        is_default := bound = 'DEFAULT';
        parts := regexp_match(bound, '^FOR VALUES FROM \((.*)\) TO \((.*)\)$');
        IF parts IS NULL OR 'MINVALUE' = parts[1] THEN
            lo := -9223372036854775808;
        ELSE
            EXECUTE format('SELECT modak.tier_value(%s::%s)', parts[1], type) INTO lo;
        END IF;
        IF parts IS NULL OR 'MAXVALUE' = parts[2] THEN
            hi := 9223372036854775807;
        ELSE
            EXECUTE format('SELECT modak.tier_value(%s::%s)', parts[2], type) INTO hi;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Whether a partition's row trigger is there, calls this function of ours, and was not switched off.
CREATE FUNCTION modak.retained_by(leaf oid, function name) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                WHERE t.tgrelid = leaf AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A' AND f.proname = function
                  AND f.pronamespace = 'modak'::regnamespace)
$$;

-- The first step of a partition's way out. Under its lock: a transaction that wrote to it has committed before the
-- trigger was there, or has its changes captured. What was captured in a former attempt is void.
CREATE FUNCTION modak.seal(id bigint, held_by text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one modak.partitions;
    name text;
BEGIN
    SELECT * INTO one FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by;
    SELECT p.relation::regclass::text INTO name FROM modak.tier_partitions(id::oid) p WHERE p.relation = one.relation_id::oid;
    IF name IS NULL OR one.state <> 'hot' THEN
        RETURN format('partition %s is not there, or is being sealed', held_by);
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', name);
    PERFORM modak.retain_triggers(id::oid, one.relation_id::oid, held_by, 'capture');
    UPDATE modak.partitions
       SET state = 'sealing', sealed_lsn = NULL, captured_after = nextval('modak.delta_version'), updated_at = now(),
           attempts = 0, reason = NULL
     WHERE table_id = id AND partition_id = held_by AND relation_id = one.relation_id AND state = 'hot';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the partition was changed meanwhile';
    END IF;
    RETURN NULL;
END $$;

-- Back to hot, for a partition that is not due any more: nothing is captured of it, and what was is forgotten. The stream
-- has all that, as long as T is not past it. Switching triggers off, not dropping them, keeps no reader out.
CREATE FUNCTION modak.unseal(id bigint, held_by text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    SELECT a.relation::regclass::text INTO name
      FROM modak.partitions p JOIN modak.tier_partitions(id::oid) a ON a.relation = p.relation_id::oid
     WHERE p.table_id = id AND p.partition_id = held_by AND p.state IN ('hot', 'sealing')
       AND modak.retained_by(a.relation, 'capture_row');
    IF name IS NULL THEN
        RETURN format('partition %s is not being sealed', held_by);
    END IF;
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER zz_modak_row, DISABLE TRIGGER zz_modak_truncate', name);
    UPDATE modak.partitions
       SET state = 'hot', sealed_lsn = NULL, updated_at = now(), attempts = 0, reason = NULL
     WHERE table_id = id AND partition_id = held_by AND state IN ('hot', 'sealing')
       AND NOT modak.retained_by(relation_id::oid, 'capture_row');
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the partition was changed meanwhile';
    END IF;
    DELETE FROM modak.mirror_captured c WHERE c.table_id = id AND c.partition_id = held_by;
    RETURN NULL;
END $$;

-- By what it is known that a partition has been attached, and its changes become corrections, without a break; NULL if
-- they do not. Who detaches it (or the whole table from where it would hang), or replaces the trigger or switches it off,
-- leaves another xmin behind, even if all is as before once he commits. VACUUM, also FREEZE and FULL, keeps xmin. Who has it
-- rewritten, so that no trigger sees what becomes of its rows, leaves another file; VACUUM FULL, CLUSTER and TRUNCATE do too,
-- and cost another proof.
CREATE FUNCTION modak.watch_mark(leaf oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('%s %s %s %s %s %s', i.inhparent, c.xmin, i.xmin, t.oid, t.xmin, l.relfilenode)
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent JOIN pg_class l ON l.oid = i.inhrelid
  JOIN pg_trigger t ON t.tgrelid = i.inhrelid
 WHERE i.inhrelid = leaf AND NOT i.inhdetachpending AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
   AND modak.retained_by(leaf, 'cold_row')
$$;

-- By what it is known that a partition has been away ever since: attaching and detaching leave another xmin behind, and what
-- was dropped does not come back.
CREATE FUNCTION modak.gone_mark(leaf oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce((SELECT c.xmin::text FROM pg_class c WHERE c.oid = leaf), 'dropped')
$$;

-- A foreign key to the whole table by which rows of others refer to rows of this partition; NULL if there is none. Those
-- of tables that the caller may not read are left to DETACH.
CREATE FUNCTION modak.referring_key(root oid, leaf oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    found boolean;
BEGIN
    FOR one IN
        SELECT k.conname, k.conrelid::regclass AS child,
               (SELECT string_agg(format('c.%I OPERATOR(%I.%s) p.%I%s', f.attname, n.nspname, o.oprname, a.attname,
                                         CASE WHEN a.attcollation <> f.attcollation
                                              THEN format(' COLLATE %s', a.attcollation::regcollation) END), ' AND ')
                  FROM unnest(k.conkey, k.confkey, k.conpfeqop) AS u(mine, theirs, operator)
                  JOIN pg_attribute f ON f.attrelid = k.conrelid AND f.attnum = u.mine
                  JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.theirs
                  JOIN pg_operator o ON o.oid = u.operator JOIN pg_namespace n ON n.oid = o.oprnamespace) AS matched
          FROM pg_constraint k
         WHERE k.contype = 'f' AND k.confrelid = root AND k.conparentid = 0
           AND has_table_privilege(k.conrelid, 'SELECT') AND NOT row_security_active(k.conrelid)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s c JOIN ONLY %s p ON %s)', one.child, leaf::regclass, one.matched)
           INTO found;
        IF found THEN
            RETURN format('rows of %s refer to rows of it, by the foreign key %s', one.child, one.conname);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The last step: why a proven partition may not be dropped now, or NULL if it was. `keep`: it is detached instead, and is
-- its owner's. A reader may have read T before it
-- passed the partition: its pin is there, or not committed yet, or its snapshot is older than that.
CREATE FUNCTION modak.drop_proven(id bigint, held_by text, keep boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one modak.partitions;
    root text := id::oid::regclass;
    name text;
    reason text;
    other record;
BEGIN
    SELECT * INTO one FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by FOR UPDATE;
    SELECT p.relation::regclass::text INTO name FROM modak.tier_partitions(id::oid) p WHERE p.relation = one.relation_id::oid;
    IF name IS NULL OR one.state IS DISTINCT FROM 'tiered' THEN
        RETURN format('partition %s is not there, or is not proven', held_by);
    END IF;
    -- DETACH looks as well, but while it keeps everybody out.
    reason := modak.referring_key(id::oid, one.relation_id::oid);
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    LOCK TABLE modak.read_pins IN SHARE MODE;
    reason := modak.pin_below(id, one.tier_key_hi, true);
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    SELECT a.pid, a.xact_start INTO other FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
       AND age(a.backend_xmin) >= age(one.advanced_xid::text::xid8::xid) ORDER BY a.xact_start LIMIT 1;
    IF FOUND THEN
        RETURN format('process %s reads a snapshot of %s, from before T passed the partition', other.pid, other.xact_start);
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', root);
    -- Everybody waits from here on, whatever else is to be locked: partition, DEFAULT partition, tables that refer.
    PERFORM set_config('lock_timeout', '50ms', true);
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', name);
    -- Again, under the locks: who changed it meanwhile has committed, and the names may lead elsewhere.
    IF to_regclass(root) IS DISTINCT FROM id::oid OR to_regclass(name) IS DISTINCT FROM one.relation_id::oid THEN
        RETURN format('partition %s was altered meanwhile', held_by);
    ELSIF modak.watch_mark(one.relation_id::oid) IS DISTINCT FROM one.proven_as OR one.proven_as IS NULL THEN
        IF NOT modak.retained_by(one.relation_id::oid, 'cold_row') THEN
            PERFORM modak.retain_triggers(id::oid, one.relation_id::oid, held_by, 'cold');
        END IF;
        UPDATE modak.partitions SET state = 'tiering', proven_at = NULL WHERE table_id = id AND partition_id = held_by;
        RETURN 'it was altered since it was proven, or its trigger zz_modak_row switched off: it is proven again';
    END IF;
    IF keep THEN
        EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', id::oid::regclass, name);
        FOR other IN SELECT tgname FROM pg_trigger
                      WHERE tgrelid = one.relation_id::oid
                        AND tgname IN ('zz_modak_row', 'zz_modak_truncate', 'mirror_pump_truncate') LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', other.tgname, name);
        END LOOP;
    ELSE
        BEGIN
            EXECUTE format('DROP TABLE %s', name);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            -- A foreign key that refers to the whole table holds on to every partition; one without referred rows is let go.
            EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', id::oid::regclass, name);
            EXECUTE format('DROP TABLE %s', name);
        END;
    END IF;
    UPDATE modak.partitions
       SET state = 'dropped', updated_at = now(), attempts = 0,
           reason = CASE WHEN keep THEN 'detached: it is a table of its own now' END
     WHERE table_id = id AND partition_id = held_by;
    RETURN NULL;
END $$;

-- Corrections between two tier values, with their keys as texts, and how the heap partition differs from them: the row is
-- `missing` from the heap, `extra` there, or `different`.
CREATE FUNCTION modak.delta_against(root oid, leaf oid, lo bigint, hi bigint)
RETURNS TABLE (pk text, key text[], difference text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    tier int;
    keys int[];
    texts text;
BEGIN
    SELECT n.tier, n.keys INTO tier, keys FROM modak.key_numbers(root, leaf) n;
    SELECT string_agg(format('format(''%%s'', k.%I)', a.attname), ', ' ORDER BY n.place) INTO texts
      FROM unnest(keys) WITH ORDINALITY AS n(attnum, place) JOIN pg_attribute a ON a.attrelid = leaf AND a.attnum = n.attnum;
    RETURN QUERY EXECUTE format(
        'SELECT d.pk, ARRAY[%s], CASE WHEN d.op = 1 AND h.pk = d.pk THEN ''extra'' WHEN d.op = 0 AND h.pk IS NULL'
        ' THEN ''missing'' WHEN d.op = 0 AND (h.pk <> d.pk OR h.image::text <> d.payload::text) THEN ''different'' END'
        ' FROM modak.delta d CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, d.payload) k'
        ' LEFT JOIN LATERAL (SELECT i.pk, i.image FROM ONLY %2$s t CROSS JOIN LATERAL (%s) AS i(tier, pk, image) WHERE %s) h'
        ' ON true WHERE d.table_id = $1 AND d.tier_key >= $2 AND d.tier_key < $3',
        texts, leaf::regclass, replace(modak.row_image(leaf, tier, keys, true), '($1).*', 't.*'),
        modak.key_match(leaf, keys, 'k'))
      USING root::bigint, lo, hi;
END $$;

-- Whether so many changes of a partition were captured since its seal that writers would wait too long for T to pass it.
CREATE FUNCTION modak.captured_too_many(one modak.partitions) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) > one.capture_limit
  FROM (SELECT FROM modak.mirror_captured c
         WHERE c.table_id = one.table_id AND c.partition_id = one.partition_id AND c.version > coalesce(one.captured_after, -1)
         LIMIT one.capture_limit + 1) c
$$;

-- A transaction that may hold a pin which nobody else sees yet, if it is younger than that (NULL: of any age); NULL if there
-- is none. It has this lock from before it reads T and S until its pin is visible, or never will be.
CREATE FUNCTION modak.pinning(younger interval DEFAULT NULL) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce('process ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'a prepared transaction')
  FROM pg_locks l
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
       AND x.locktype = 'transactionid'
  LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
 CROSS JOIN LATERAL coalesce(a.xact_start, p.prepared) AS began(at)
 WHERE l.locktype = 'relation' AND l.relation = 'modak.read_pins'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND (began.at > clock_timestamp() - younger) IS NOT FALSE
 ORDER BY began.at DESC LIMIT 1
$$;

-- A reader whose pin is of a T below `cut`: the pin that lasts longest; NULL if there is none. `whole`: of any reader; else
-- only of those that may read the delta more than once, or without a filter (not read_pins.in_one_snapshot).
CREATE FUNCTION modak.pin_below(id bigint, cut bigint, whole boolean) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('pin %s of a reader (%s) lasts until %s', p.pin_id, p.reader, date_trunc('second', p.expires_at))
  FROM modak.read_pins p
 WHERE p.table_id = id AND p.pinned_tier_key_hi < cut AND p.expires_at > now() AND (whole OR NOT p.in_one_snapshot)
 ORDER BY p.expires_at DESC LIMIT 1
$$;

-- T passes a partition: within the publish whose cold snapshot holds every row below `cut` as of `frontier`. Why it may
-- not, or NULL. Waits for locks as long as lock_timeout lets it; they keep writers of the partition and new partitions
-- out until the end of the transaction, so that what is captured is all there is.
CREATE FUNCTION modak.advance(id bigint, held_by text, cut bigint, frontier bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one modak.partitions;
    name text;
    other text;
BEGIN
    SELECT * INTO one FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by;
    IF one IS NULL OR one.state NOT IN ('hot', 'sealing') OR one.tier_key_hi IS DISTINCT FROM cut THEN
        RETURN format('partition %s is not waiting for T to reach %s', held_by, cut);
    END IF;
    FOR name IN SELECT p.relation::regclass::text FROM modak.tier_partitions(id::oid) p WHERE p.is_default LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', name);
    END LOOP;
    SELECT p.relation::regclass::text INTO name FROM modak.tier_partitions(id::oid) p WHERE p.relation = one.relation_id::oid;
    IF name IS NOT NULL THEN
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', name);
        IF NOT EXISTS (SELECT FROM modak.tier_partitions(id::oid) p
                        WHERE p.relation = one.relation_id::oid AND p.relation::regclass::text = name) THEN
            RETURN format('partition %s was altered meanwhile', held_by);
        END IF;
    END IF;
    -- Again, under the locks.
    SELECT * INTO one FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by FOR UPDATE;
    IF name IS NULL AND one.gone_as IS DISTINCT FROM modak.gone_mark(one.relation_id::oid) THEN
        -- F has to pass everything that was written to it while it was there: sealed_lsn is behind that once it is known
        -- to be away.
        RETURN format('partition %s was altered meanwhile', held_by);
    ELSIF one.sealed_lsn IS NULL THEN
        RETURN format('partition %s is not sealed', held_by);
    ELSIF one.sealed_lsn > frontier THEN
        RETURN format('F has not passed the position at which partition %s was sealed', held_by);
    ELSIF name IS NOT NULL AND (one.state <> 'sealing' OR NOT modak.retained_by(one.relation_id::oid, 'capture_row')) THEN
        RETURN format('changes of partition %s are not captured', held_by);
    ELSIF name IS NOT NULL AND modak.captured_too_many(one) THEN
        RETURN format('more than %s changes of partition %s were captured', one.capture_limit, held_by);
    ELSIF NOT EXISTS (SELECT FROM modak.mirror_tables m WHERE m.table_id = id AND m.state = 'live'
                         AND m.start_lsn <= one.sealed_lsn) THEN
        RETURN format('the table is being copied, or was since partition %s was sealed', held_by);
    END IF;
    SELECT string_agg(p.relation::regclass::text, ', ') INTO other FROM modak.tier_partitions(id::oid) p
     WHERE NOT p.is_default AND p.lo < cut AND p.relation <> one.relation_id::oid
       AND NOT EXISTS (SELECT FROM modak.partitions k WHERE k.table_id = id AND k.relation_id = p.relation::bigint
                          AND k.state IN ('tiering', 'tiered'));
    IF other IS NOT NULL THEN
        RETURN format('partition %s comes first', other);
    END IF;
    -- A reader takes every correction of the table for one of a row below its T: were T to pass a partition under his pin, he
    -- would find the partition's corrected rows in the heap and in the delta. So T waits for the pins of all who do not say
    -- that they read in one snapshot, for those that nobody sees yet too, and new ones wait for the end of this transaction.
    BEGIN
        LOCK TABLE modak.read_pins IN SHARE MODE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN format('%s is putting a pin in place', coalesce(modak.pinning(), 'a session'));
    END;
    other := modak.pin_below(id, cut, false);
    IF other IS NOT NULL THEN
        RETURN other;
    END IF;
    UPDATE modak.cutline SET tier_key_hi = cut, updated_at = now() WHERE table_id = id AND tier_key_hi < cut;
    IF NOT FOUND THEN
        RETURN format('T has passed %s already', cut);
    END IF;
    IF name IS NOT NULL THEN
        PERFORM modak.retain_triggers(id::oid, one.relation_id::oid, held_by, 'cold');
        -- As put_delta() does it, of all at once: writers wait meanwhile.
        INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
        SELECT m.table_id, m.pk, m.op, m.tier_key, nextval('modak.delta_version'), m.payload
          FROM (SELECT * FROM modak.mirror_captured c
                 WHERE c.table_id = id AND c.partition_id = held_by AND c.version > coalesce(one.captured_after, -1)
                 ORDER BY c.version) m
        ON CONFLICT (table_id, pk) DO UPDATE
           SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
               payload = excluded.payload, updated_at = now(), folded_sequence = NULL;
    END IF;
    DELETE FROM modak.mirror_captured c WHERE c.table_id = id AND c.partition_id = held_by;
    UPDATE modak.partitions
       SET state = CASE WHEN name IS NULL THEN 'dropped' ELSE 'tiering' END, updated_at = now(), attempts = 0,
           advanced_xid = pg_current_xact_id()::text::bigint,
           reason = CASE WHEN name IS NULL THEN coalesce(reason, 'not dropped by the mirror') END
     WHERE table_id = id AND partition_id = held_by;
    RETURN NULL;
END $$;

-- The role whose statement this is, also within a SECURITY DEFINER function.
CREATE FUNCTION modak.caller() RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END
$$;

-- A tombstone for a row below T, on behalf of a caller who may delete rows of the table.
CREATE FUNCTION modak.bury(relation regclass, key jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    tier bigint;
    canonical text;
    image jsonb;
    cut bigint;
    numbers int[];
    tier_number int;
BEGIN
    IF NOT has_table_privilege(modak.caller(), relation, 'DELETE') THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('permission denied for table %s', relation);
    END IF;
    IF (SELECT c.relrowsecurity AND NOT (pg_has_role(modak.caller(), c.relowner, 'USAGE') OR r.rolsuper OR r.rolbypassrls)
          FROM pg_class c, pg_roles r WHERE c.oid = relation AND r.rolname = modak.caller()) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('row security of %s cannot be applied to rows that the heap no longer holds', relation);
    END IF;
    SELECT modak.moved_cut(relation::oid::bigint) INTO cut;
    IF cut IS NULL THEN
        RETURN false;
    END IF;
    SELECT n.tier, n.keys INTO tier_number, numbers FROM modak.key_numbers(relation, relation) n;
    IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum = ANY (numbers)
                  AND coalesce(key -> a.attname::text, 'null') = 'null') THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the mirror has not followed a change of the key of %s yet', relation);
    END IF;
    EXECUTE replace(modak.row_image(relation, tier_number, numbers, false), '($1).*',
                    format('(jsonb_populate_record(NULL::%s, $1)).*', relation))
       INTO tier, canonical, image USING key;
    IF tier >= cut OR modak.is_infinite(relation::oid::bigint, tier) THEN
        RETURN false;
    END IF;
    PERFORM modak.put_delta(relation::oid::bigint, canonical, 1::smallint, tier, image);
    RETURN true;
END $$;

-- What callers of upsert() and delete() need of the catalog, whose tables they may not read: the tier key's column as the
-- heap has it, and T. T is NULL where no row can be below it, the row is missing for a table that is not mirrored.
CREATE FUNCTION modak.tier_of(relation regclass) RETURNS TABLE (tier_column text, cut bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT (SELECT a.attname::text FROM modak.mirror_tables m CROSS JOIN jsonb_to_recordset(m.columns) AS c(attnum int, name text)
          JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = c.attnum
         WHERE m.table_id = t.table_id AND c.name = t.tier_key_col), modak.moved_cut(t.table_id)
  FROM modak.tables t WHERE t.table_id = relation::oid::bigint
$$;

-- Checks the columns that a caller names, and says how each one's value comes out of the object $1.
CREATE FUNCTION modak.given_columns(relation regclass, given jsonb)
RETURNS TABLE (name name, expression text, in_key boolean, always boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
    key text[];
BEGIN
    IF NOT EXISTS (SELECT FROM modak.tier_of(relation)) THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_table', MESSAGE = format('%s is not mirrored', relation);
    END IF;
    IF jsonb_typeof(given) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the row is no JSON object of its columns';
    END IF;
    SELECT array_agg(k) INTO key FROM jsonb_array_elements_text(modak.mirror_identity(relation) -> 'key') k;
    SELECT a.attname INTO wrong FROM pg_attribute a
     WHERE a.attrelid = relation AND a.attname = ANY (key) AND a.attgenerated <> '' LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
            MESSAGE = format('key column "%s" of %s is generated', wrong, relation),
            HINT = 'write to the table itself';
    END IF;
    SELECT k.given_name INTO wrong FROM jsonb_object_keys(given) AS k(given_name)
     WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = k.given_name
                          AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_column',
            MESSAGE = format('column "%s" of %s does not exist, or is generated', wrong, relation);
    END IF;
    SELECT k INTO wrong FROM unnest(key) k WHERE coalesce(given -> k, 'null') = 'null' LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'not_null_violation',
            MESSAGE = format('the row has no value of key column "%s"', wrong);
    END IF;
    RETURN QUERY
    SELECT a.attname,
           format('CASE jsonb_typeof($1 -> %1$L) WHEN ''string'' THEN ($1 ->> %1$L)::%2$s WHEN ''null'' THEN NULL'
                  ' ELSE (jsonb_populate_record(NULL::%3$s, $1)).%1$I END',
                  a.attname, format_type(a.atttypid, a.atttypmod), relation),
           a.attname = ANY (key), a.attidentity = 'a'
      FROM pg_attribute a
     WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND given ? a.attname::text
     ORDER BY a.attnum;
END $$;

-- Writes a whole row, wherever the row of its key is: INSERT ... ON CONFLICT (key) DO UPDATE on the table, whose triggers
-- take rows below T to modak.delta. A column that is not given gets its default. Says where the row went.
CREATE FUNCTION modak.upsert(relation regclass, image jsonb) RETURNS text
LANGUAGE plpgsql SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    names text;
    expressions text;
    conflict text;
    assignments text;
    tier bigint;
    cut bigint;
BEGIN
    SELECT o.cut INTO cut FROM modak.tier_of(relation) o;
    SELECT pg_catalog.string_agg(pg_catalog.quote_ident(g.name), ', '), pg_catalog.string_agg(g.expression, ', '),
           pg_catalog.string_agg(pg_catalog.quote_ident(g.name), ', ') FILTER (WHERE g.in_key)
      INTO names, expressions, conflict FROM modak.given_columns(relation, image) g;
    SELECT pg_catalog.string_agg(pg_catalog.format('%1$I = excluded.%1$I', a.attname), ', ') INTO assignments
      FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a'
       AND NOT EXISTS (SELECT FROM modak.given_columns(relation, image) g WHERE g.in_key AND g.name = a.attname);
    EXECUTE pg_catalog.format('INSERT INTO %s AS t (%s) OVERRIDING SYSTEM VALUE VALUES (%s) ON CONFLICT (%s) DO %s RETURNING %s',
                   relation, names, expressions, conflict, coalesce('UPDATE SET ' || assignments, 'NOTHING'),
                   coalesce((SELECT pg_catalog.format('modak.tier_value(t.%I)', o.tier_column) FROM modak.tier_of(relation) o
                              WHERE o.cut IS NOT NULL), 'NULL::bigint'))
       INTO tier USING image;
    RETURN CASE WHEN tier < cut THEN 'delta' ELSE 'heap' END;
END $$;

-- Deletes the row of a key, wherever it is. Says where it was, or would have been: below T nobody looks before writing
-- the tombstone.
CREATE FUNCTION modak.delete(relation regclass, key jsonb) RETURNS text
LANGUAGE plpgsql SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    matched text;
    extra text;
    deleted bigint;
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format('t.%I = %s', g.name, g.expression), ' AND ') FILTER (WHERE g.in_key),
           min(g.name::text) FILTER (WHERE NOT g.in_key)
      INTO matched, extra FROM modak.given_columns(relation, key) g;
    IF extra IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = pg_catalog.format('column "%s" is not part of the key of %s', extra, relation);
    END IF;
    EXECUTE pg_catalog.format('DELETE FROM %s t WHERE %s', relation, matched) USING key;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted > 0 THEN
        RETURN 'heap';
    END IF;
    RETURN CASE WHEN modak.bury(relation, key) THEN 'delta' ELSE 'nothing' END;
END $$;

-- Keeps what a reader is about to read: T, and the lake at S. One statement, one snapshot. `in_one_snapshot` promises what
-- the column of read_pins says.
CREATE FUNCTION modak.pin(relation regclass, ttl interval DEFAULT '15 minutes', in_one_snapshot boolean DEFAULT false)
RETURNS TABLE (pin_id bigint, t bigint, s bigint, metadata_location text, snapshot_id text)
LANGUAGE sql AS $$
WITH seam AS (
    SELECT c.table_id, c.tier_key_hi, c.lake_snapshot_id, c.lake_props FROM modak.cutline c
     WHERE c.table_id = relation::oid::bigint),
pinned AS (
    INSERT INTO modak.read_pins AS p (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, in_one_snapshot)
    SELECT table_id, lake_snapshot_id, tier_key_hi, now() + ttl, pin.in_one_snapshot FROM seam
    RETURNING p.pin_id)
SELECT pinned.pin_id, seam.tier_key_hi, seam.lake_snapshot_id, seam.lake_props ->> 'metadata_location',
       seam.lake_props ->> 'snapshot_id'
  FROM seam, pinned
$$;

-- What rows from before a column have in it (columns that are not here: NULL), as the column's type prints it: for readers of an S
-- that lacks columns which the table has by now, those of field IDs that it has not (NULL: of no ID yet). As of the caller's
-- snapshot.
CREATE FUNCTION modak.initial_values(relation regclass) RETURNS TABLE (column_name text, field_id int, value text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET array_nulls = on AS $$
SELECT a.attname::text, c.field_id, coalesce(c.initial, told.text)
  FROM modak.mirror_tables m
  JOIN pg_attribute a ON a.attrelid = m.table_id::oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN jsonb_to_recordset(m.columns) AS c(attnum int, field_id int, initial text) ON c.attnum = a.attnum
 -- Until the mirror has come to the column: partitions from before it have the value in the catalog.
 LEFT JOIN LATERAL (
       SELECT (min(l.attmissingval::text)::text[])[1] AS text
         FROM modak.mirror_tree(m.table_id::oid) r
         JOIN pg_attribute l ON l.attrelid = r.relation AND l.attname = a.attname AND l.atthasmissing AND NOT l.attisdropped
        WHERE r.is_leaf AND c.attnum IS NULL
       HAVING count(DISTINCT l.attmissingval::text) = 1) told ON true
 WHERE m.table_id = relation::oid::bigint AND coalesce(c.initial, told.text) IS NOT NULL
$$;

CREATE FUNCTION modak.release(pin bigint) RETURNS boolean
LANGUAGE sql AS $$
WITH gone AS (DELETE FROM modak.read_pins WHERE pin_id = pin RETURNING 1) SELECT EXISTS (SELECT FROM gone)
$$;

-- Whether F of every live table has passed a WAL position (default: the present one), now or within `timeout`. An idle
-- pump is woken by a message that is in the stream at once, whatever becomes of the caller's transaction.
CREATE FUNCTION modak.wait_for(lsn pg_lsn DEFAULT NULL, timeout interval DEFAULT '5 seconds') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    target bigint := coalesce(lsn, pg_catalog.pg_current_wal_insert_lsn()) - '0/0'::pg_catalog.pg_lsn;
    deadline timestamptz := pg_catalog.clock_timestamp() + timeout;
    asked timestamptz;
    passed boolean;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'active_sql_transaction',
            MESSAGE = 'a transaction that reads one snapshot cannot see F move',
            HINT = 'wait before it begins, or in READ COMMITTED';
    END IF;
    LOOP
        SELECT coalesce(min(c.replicated_lsn), max(s.applied_lsn)) >= target INTO passed
          FROM modak.mirror_slots s
          LEFT JOIN modak.mirror_tables m ON m.slot_name = s.slot_name AND m.state = 'live'
          LEFT JOIN modak.cutline c USING (table_id);
        IF passed THEN
            RETURN true;
        END IF;
        IF pg_catalog.clock_timestamp() >= deadline THEN
            RETURN false;
        END IF;
        IF asked IS NULL OR pg_catalog.clock_timestamp() > asked + interval '2 seconds' THEN
            asked := pg_catalog.clock_timestamp();
            IF pg_catalog.current_setting('server_version_num')::int >= 170000 THEN
                EXECUTE 'SELECT pg_catalog.pg_logical_emit_message(false, ''modak.wait'', $1, true)'
                  USING pg_catalog.to_hex(target);
            ELSE
                PERFORM pg_catalog.pg_logical_emit_message(false, 'modak.wait', pg_catalog.to_hex(target));
            END IF;
        END IF;
        PERFORM pg_catalog.pg_sleep(0.02);
    END LOOP;
END $$;

CREATE VIEW modak.status AS
SELECT t.table_id,
       t.schema_name,
       t.table_name,
       t.mode,
       c.tier_key_hi AS cutline_t,
       c.lake_snapshot_id AS cutline_s,
       c.replicated_lsn AS mirror_frontier,
       c.retention_line,
       c.updated_at AS cutline_updated_at,
       (SELECT count(*) FROM modak.delta d WHERE d.table_id = t.table_id) AS delta_backlog,
       (SELECT count(*) FROM modak.read_pins r WHERE r.table_id = t.table_id) AS read_pins,
       (SELECT count(*) FROM modak.load_labels l WHERE l.table_id = t.table_id AND l.state = 'staged') AS staged_loads,
       EXISTS (SELECT FROM modak.copy_progress g WHERE g.table_id = t.table_id) AS copying,
       (SELECT jsonb_object_agg(p.state, p.partitions)
          FROM (SELECT state, count(*) AS partitions
                  FROM modak.partitions
                 WHERE table_id = t.table_id
                 GROUP BY state) p) AS partition_states,
       (SELECT min(r.started_at) FROM modak.read_pins r WHERE r.table_id = t.table_id AND r.expires_at > now()) AS oldest_pin,
       (SELECT count(*) FROM modak.read_pins r WHERE r.table_id = t.table_id AND r.expires_at <= now()) AS expired_pins,
       (SELECT count(*) FROM modak.delta d WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL) AS delta_unfolded,
       (SELECT min(d.updated_at) FROM modak.delta d
         WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL) AS delta_since,
       t.heap_retention_lag,
       m.retention ->> 'stopped' AS retention_stopped
  FROM modak.tables t
  LEFT JOIN modak.cutline c ON c.table_id = t.table_id
  LEFT JOIN modak.mirror_tables m ON m.table_id = t.table_id;
COMMENT ON VIEW modak.status IS 'One row a table, for people and dashboards';

REVOKE EXECUTE ON FUNCTION modak.put_delta(bigint, text, smallint, bigint, jsonb),
    modak.put_captured(bigint, text, text, smallint, bigint, jsonb), modak.complete_corrections(bigint, jsonb, boolean),
    modak.retain_triggers(oid, oid, text, text), modak.advance(bigint, text, bigint, bigint), modak.seal(bigint, text),
    modak.unseal(bigint, text), modak.drop_proven(bigint, text, boolean), modak.mirror_unwatch(oid) FROM PUBLIC;
