-- How schema changes get into the stream at their exact place (mirror_pump/source/relations/change_notes.py), and where a table that is
-- copied again keeps its new content until that is complete (mirror_pump/pipeline/publish/publisher.py).

ALTER TABLE modak.mirror_tables
    ADD COLUMN shape jsonb,
    ADD COLUMN staged_location text,
    ADD COLUMN staged_snapshot_id bigint,
    ADD COLUMN stalled boolean NOT NULL DEFAULT false,
    ADD COLUMN published text,
    ADD COLUMN dropped_rows jsonb;

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
BEGIN
    SELECT shape INTO former FROM modak.mirror_shapes WHERE table_id = told_id;
    UPDATE modak.mirror_shapes SET shape = present, told_at = now() WHERE table_id = told_id;
    PERFORM modak.mirror_message(jsonb_build_object(
        'table', told_id, 'exact', exact AND modak.mirror_events(), 'settled', settled, 'shape', present,
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

CREATE FUNCTION modak.mirror_unwatch(root oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf regclass;
BEGIN
    FOR leaf IN
        SELECT t.tgrelid FROM modak.mirror_tree(root) r JOIN pg_trigger t ON t.tgrelid = r.relation
         WHERE t.tgname = 'mirror_pump_truncate'
    LOOP
        EXECUTE format('DROP TRIGGER mirror_pump_truncate ON %s', leaf);
    END LOOP;
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
    modak.mirror_alarm(bigint[]), modak.mirror_watch(oid, oid[]), modak.mirror_unwatch(oid), modak.mirror_message(jsonb) FROM PUBLIC;

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
 WHERE m.slot_name = mirror_published.slot AND m.state <> 'failed'
$$;

UPDATE modak.mirror_tables m SET published = n.present
  FROM modak.mirror_slots s CROSS JOIN LATERAL modak.mirror_published(s.slot_name) n WHERE n.table_id = m.table_id;

INSERT INTO modak.mirror_shapes (table_id, shape) SELECT table_id, modak.mirror_shape(table_id::oid) FROM modak.mirror_tables;
