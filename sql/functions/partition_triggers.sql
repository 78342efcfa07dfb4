-- The triggers on partitions of tables with heap retention, and the functions that create them. Triggers refer to their
-- functions by OID, so each trigger function keeps its name and takes no parameters.
--
-- A trigger's arguments: table_id, partition_id, the partition's attribute numbers of the tier key and of the key's columns
-- (these survive renames), and the kind of trigger:
--   capture   the partition is being sealed: its changes wait in mirror_captured until the cut-line passes it
--   cold      the cut-line has passed it: its changes are corrections of the lake
--   default   the DEFAULT partition: rows below the cut-line that arrive here are corrections too
-- Triggers of a detached partition do nothing. All values are printed under the settings of these functions, which are those
-- of the mirror's own connections. If row security would hide rows, the triggers fail.

-- Records the row that a partition holds for a changed key: as a captured change if the partition is being sealed, as a
-- correction if it is below the cut-line.
CREATE OR REPLACE FUNCTION modak.put_change(kind text, id bigint, held_by text, key text, what smallint, tier bigint, image jsonb)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind = 'cold' THEN
        IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
           AND tier >= (SELECT c.tier_key_hi FROM modak.cutline c WHERE c.table_id = id) THEN
            -- Of a partition that its owner has attached anew, above the cut-line. The stream has it. An older snapshot could have
            -- a lower cut-line.
            RETURN;
        END IF;
        -- Of a partition that was attached below the line.
        PERFORM modak.refuse_expired(id, tier);
        PERFORM modak.put_delta(id, key, what, tier, image);
        RETURN;
    END IF;
    INSERT INTO modak.mirror_captured AS d (table_id, partition_id, pk, op, tier_key, version, payload)
    VALUES (id, held_by, key, what, tier, nextval('modak.delta_version'), image)
    ON CONFLICT (table_id, pk) DO UPDATE
       SET partition_id = excluded.partition_id, op = excluded.op, tier_key = excluded.tier_key,
           version = nextval('modak.delta_version'), payload = excluded.payload;
END $$;

-- Refuses a change by a transaction whose snapshot is older than the partition, or than a column of it. It reads catalogs as of
-- that snapshot, but rows in their present form, so it would find no columns, or omit one from the row's payload. Columns are only
-- ever added behind the others. pg_class is read as of the snapshot; has_column_privilege() reads the present catalogs, and is NULL
-- for a column that does not exist.
CREATE OR REPLACE FUNCTION modak.refuse_outdated(leaf oid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known int := (SELECT c.relnatts FROM pg_class c WHERE c.oid = leaf);
BEGIN
    IF known IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
            MESSAGE = format('could not serialize access: partition %s is younger than the transaction''s snapshot', leaf::regclass),
            HINT = 'The transaction might succeed if retried.';
    END IF;
    IF EXISTS (SELECT FROM generate_series(known + 1, known + 100) AS n(attnum)
                WHERE has_column_privilege(leaf, n.attnum::smallint, 'SELECT') IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
            MESSAGE = 'could not serialize access due to concurrent ALTER TABLE',
            HINT = 'The transaction might succeed if retried.';
    END IF;
END $$;

-- Whether logical replication brings the catalog from another server, by a subscription of a role that could change it anyway. With it comes what the triggers made there of a change, so they must
-- not make it again where the change is applied (session_replication_role is `replica`).
CREATE OR REPLACE FUNCTION modak.comes_replicated() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
                WHERE r.srrelid = 'modak.delta'::regclass AND s.subenabled
                  AND pg_has_role(s.subowner, (SELECT c.relowner FROM pg_class c WHERE c.oid = r.srrelid), 'USAGE'))
$$;

-- The trigger for each row of a partition that is being sealed, or that the cut-line has passed.
CREATE OR REPLACE FUNCTION modak.record_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    id CONSTANT bigint := TG_ARGV[0];
    kind CONSTANT text := TG_ARGV[4];
    number CONSTANT int := TG_ARGV[2];
    keys CONSTANT int[] := TG_ARGV[3];
    shape text;
    former record;
    present record;
    key text;
    -- The former row may have another key.
    other_key boolean := TG_OP = 'DELETE';
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM id OR current_setting('session_replication_role') = 'replica' AND modak.comes_replicated() THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM modak.load_labels l WHERE l.table_id = id AND l.state = 'staged'
                  AND l.staged_files ->> 'transaction' = pg_current_xact_id()::text) THEN
        -- modak.settle_load() looks what the partition holds of all keys at once. format() calls the output functions of types,
        -- and no cast, which the table's owner might have made.
        IF TG_OP <> 'INSERT' THEN
            INSERT INTO modak.mirror_load_rows VALUES (id, TG_RELID::bigint, TG_ARGV[1], kind, format('%s', OLD));
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO modak.mirror_load_rows VALUES (id, TG_RELID::bigint, TG_ARGV[1], kind, format('%s', NEW));
        END IF;
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        -- Its snapshot may show another shape than the partition has.
        PERFORM modak.refuse_outdated(TG_RELID);
    ELSE
        shape := modak.row_shape(TG_RELID, TG_ARGV[2], TG_ARGV[3]);
    END IF;
    IF TG_OP = 'INSERT' THEN
        SELECT * INTO present FROM modak.held_row(TG_RELID, shape, number, keys, NEW, NEW);
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT * INTO present FROM modak.held_row(TG_RELID, shape, number, keys, NEW, OLD);
        other_key := present.op >= 2;
        present.op := present.op % 2;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        key := present.pk;
        IF kind = 'cold' AND present.op = 0 AND modak.is_infinite(id, present.tier) THEN
            RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                MESSAGE = format('a row of "%s" below the cut-line has a finite tier key', TG_TABLE_NAME);
        END IF;
    END IF;
    IF other_key THEN
        SELECT * INTO former FROM modak.held_row(TG_RELID, shape, number, keys, OLD, OLD);
        IF key IS DISTINCT FROM former.pk THEN
            PERFORM modak.put_change(kind, id, TG_ARGV[1], former.pk, former.op, former.tier, former.image);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM modak.put_change(kind, id, TG_ARGV[1], key, present.op, present.tier, present.image);
    END IF;
    RETURN NULL;
END $$;

-- Invalidates changes captured before. Does not delete them, since a REPEATABLE READ transaction does not see all of them.
CREATE OR REPLACE FUNCTION modak.capture_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint OR current_setting('session_replication_role') = 'replica' AND modak.comes_replicated() THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET sealed_lsn = NULL, captured_after = nextval('modak.delta_version')
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1];
    RETURN NULL;
END $$;

-- TRUNCATE affects rows at or above the cut-line only. Those of a partition below it stay in the lake.
CREATE OR REPLACE FUNCTION modak.cold_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint OR current_setting('session_replication_role') = 'replica' AND modak.comes_replicated() THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET truncated = true
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1] AND NOT truncated;
    RETURN NULL;
END $$;

-- Writes all rows of a partition to modak.delta: as they are (op 0), or as tombstones (op 1). Blocks that are added meanwhile are
-- left out, so the caller has to keep writers away.
CREATE OR REPLACE FUNCTION modak.put_partition(id bigint, leaf oid, what smallint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    -- Blocks whose rows are in memory at once.
    step CONSTANT bigint := 64;
    blocks CONSTANT bigint := pg_relation_size(leaf) / current_setting('block_size')::bigint;
    first bigint;
    image text;
    found jsonb;
BEGIN
    SELECT modak.row_image(leaf, n.tier, n.keys, what = 0, 't') INTO image FROM modak.key_numbers(id::oid, leaf) n;
    FOR first IN SELECT s.block FROM generate_series(0, blocks - 1, step) AS s(block) LOOP
        SELECT o.image INTO found FROM modak.as_owner(
            leaf,
            format('SELECT NULL::bigint, NULL::text, NULL::smallint, jsonb_agg(jsonb_build_array(i.tier, i.pk, i.image))'
                   ' FROM ONLY %s t CROSS JOIN LATERAL (%s) AS i(tier, pk, image)'
                   ' WHERE t.ctid >= ''(%s,0)'' AND t.ctid < ''(%s,0)''', leaf::regclass, image, first, first + step),
            0) o;
        INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
        SELECT id, e ->> 1, what, (e ->> 0)::bigint, nextval('modak.delta_version'), e -> 2
          FROM jsonb_array_elements(coalesce(found, '[]')) e
        ON CONFLICT (table_id, pk) DO UPDATE
           SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
               payload = excluded.payload, updated_at = now(), folded_sequence = NULL;
    END LOOP;
END $$;

-- Before the TRUNCATE of a partition below the cut-line of a table that keeps its heap: its rows, which are all that the lake and
-- modak.delta have in its range, get tombstones. So at each moment readers of the lake see what readers of the heap see. An older
-- snapshot would miss rows, so the transaction must not have one.
CREATE OR REPLACE FUNCTION modak.kept_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint OR current_setting('session_replication_role') = 'replica' AND modak.comes_replicated() THEN
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING ERRCODE = 'feature_not_supported', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            MESSAGE = format('partition "%s" cannot be truncated in a transaction that reads one snapshot', TG_TABLE_NAME),
            DETAIL = 'Its rows are in the lake as well, and have to be deleted there.',
            HINT = 'truncate it in READ COMMITTED, or use DELETE';
    END IF;
    PERFORM modak.put_partition(TG_ARGV[0]::bigint, TG_RELID, 1::smallint);
    RETURN NULL;
END $$;

-- On the DEFAULT partition: moves a row below the cut-line to modak.delta, as other triggers have left it, and refuses any
-- other row. Rows of a labelled load stay until modak.settle_load() moves them. The DELETE fires triggers of the table's owner, with the owner's rights.
CREATE OR REPLACE FUNCTION modak.route_old_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    keys int[] := TG_ARGV[3]::int[];
    matched text;
    tier bigint;
    key text;
    image jsonb;
    unchanged boolean;
    kept boolean;
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint OR current_setting('session_replication_role') = 'replica' AND modak.comes_replicated() THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM modak.load_labels l WHERE l.table_id = TG_ARGV[0]::bigint AND l.state = 'staged'
                  AND l.staged_files ->> 'transaction' = pg_current_xact_id()::text) THEN
        -- modak.settle_load() moves all rows of a load at once, if its snapshot shows that there are any.
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
           AND NOT EXISTS (SELECT FROM pg_partitioned_table p
                            WHERE p.partdefid = TG_RELID AND modak.retained_by(p.partdefid, 'default')) THEN
            RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
                MESSAGE = format('could not serialize access: the trigger of partition %s is younger than the transaction''s snapshot',
                                 TG_RELID::regclass),
                HINT = 'The transaction might succeed if retried.';
        END IF;
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM modak.refuse_outdated(TG_RELID);
    END IF;
    matched := modak.key_match(TG_RELID, keys, '($1)');
    IF TG_OP = 'UPDATE' THEN
        SELECT o.tier IS NULL INTO unchanged
          FROM modak.as_owner(TG_RELID, format('SELECT CASE WHEN %s THEN 1 END',
                                                modak.key_differs(TG_RELID, keys, '($1)[1]', '($1)[2]')), ARRAY[OLD, NEW]) o;
        IF unchanged THEN
            -- Changed by a trigger that fired before this one. This trigger fires again for that change.
            RETURN NULL;
        END IF;
    END IF;
    SELECT o.tier, o.pk, o.image INTO tier, key, image FROM modak.as_owner(
        TG_RELID,
        format('WITH gone AS (DELETE FROM ONLY %s t WHERE %s RETURNING t.*) SELECT i.tier, i.pk, 0::smallint, i.image'
               ' FROM gone g CROSS JOIN LATERAL (%s) AS i(tier, pk, image)', TG_RELID::regclass, matched,
               modak.row_image(TG_RELID, TG_ARGV[2]::int, keys, true, 'g')),
        NEW) o;
    IF tier IS NULL THEN
        SELECT o.tier > 0 INTO kept
          FROM modak.as_owner(TG_RELID, format('SELECT count(*) FROM ONLY %s t WHERE %s', TG_RELID::regclass, matched), NEW) o;
        IF kept THEN
            RAISE EXCEPTION USING ERRCODE = 'triggered_data_change_violation',
                MESSAGE = format('the row is below the cut-line, and a DELETE trigger keeps it in %s', TG_RELID::regclass),
                HINT = 'create that trigger with WHEN (pg_trigger_depth() = 0): rows leave the DEFAULT partition by a DELETE',
                SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
        END IF;
        RETURN NULL;
    END IF;
    -- A table that keeps its heap has every row there, so that one without a partition has no place.
    IF modak.is_infinite(TG_ARGV[0]::bigint, tier) OR tier < modak.moved_cut(TG_ARGV[0]::bigint) IS NOT TRUE
       OR modak.keeps_heap(TG_ARGV[0]::bigint) THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('no partition of relation "%s" found for row',
                             (SELECT relname FROM pg_class WHERE oid = pg_partition_root(TG_RELID))),
            DETAIL = format('The row''s key is %s.', image -> (SELECT attname::text FROM pg_attribute
                             WHERE attrelid = TG_RELID AND attnum = TG_ARGV[2]::int)),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    PERFORM modak.refuse_expired(TG_ARGV[0]::bigint, tier);
    PERFORM modak.put_delta(TG_ARGV[0]::bigint, key, 0::smallint, tier, image);
    RETURN NULL;
END $$;

-- Creates a partition's triggers of one of the kinds above, and replaces those that it has: the names are the same for all
-- kinds. Replacing takes SHARE ROW EXCLUSIVE, as creating does.
CREATE OR REPLACE FUNCTION modak.retain_triggers(root oid, leaf oid, held_by text, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments text;
    name text;
    kept CONSTANT boolean := kind = 'cold' AND modak.keeps_heap(root::bigint);
BEGIN
    PERFORM modak.owner_function(leaf);
    SELECT format('%L, %L, %L, %L, %L', root::bigint, held_by, n.tier, n.keys, kind) INTO arguments
      FROM modak.key_numbers(root, leaf) n;
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_row AFTER %s ON %s FOR EACH ROW EXECUTE FUNCTION modak.%I(%s)',
                   CASE kind WHEN 'default' THEN 'INSERT OR UPDATE' ELSE 'INSERT OR UPDATE OR DELETE' END, leaf::regclass,
                   CASE kind WHEN 'default' THEN 'route_old_row' ELSE 'record_change' END, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass,
                   CASE WHEN kept THEN 'kept_truncate' WHEN kind = 'capture' THEN 'capture_truncate' ELSE 'cold_truncate' END,
                   arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER mirror_pump_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass,
                   CASE WHEN kept OR kind = 'capture' THEN 'mirror_truncated' ELSE 'cold_truncate' END, arguments);
    FOREACH name IN ARRAY ARRAY['zz_modak_row', 'zz_modak_truncate', 'mirror_pump_truncate'] LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', leaf::regclass, name);
    END LOOP;
END $$;

-- Whether a partition's row trigger exists, is ours, is of this kind and is enabled. The kind is its last argument;
-- pg_trigger.tgargs ends each argument with a zero byte.
CREATE OR REPLACE FUNCTION modak.retained_by(leaf oid, kind text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                WHERE t.tgrelid = leaf AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
                  AND f.pronamespace = 'modak'::regnamespace AND f.proname IN ('record_change', 'route_old_row')
                  AND right(encode(t.tgargs, 'escape'), length(kind) + 8) = '\000' || kind || '\000')
$$;

REVOKE EXECUTE ON FUNCTION modak.put_change(text, bigint, text, text, smallint, bigint, jsonb),
    modak.put_partition(bigint, oid, smallint), modak.retain_triggers(oid, oid, text, text) FROM PUBLIC;
