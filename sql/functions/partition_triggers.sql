-- The triggers on partitions of tables with heap retention, and what puts them there. Partitions' triggers refer to these
-- functions by OID, so each keeps its name and takes no parameters.
--
-- A trigger's arguments: table_id, partition_id, the partition's attribute numbers of the tier key and of the key's columns
-- (these survive renames), and the kind of trigger:
--   capture   the partition is being sealed: its changes wait in mirror_captured until the cut-line passes it
--   cold      the cut-line has passed it: its changes are corrections of the lake
--   default   the DEFAULT partition: rows below the cut-line that arrive here are corrections too
-- Triggers of a partition that was detached do nothing. Every value is printed under the settings of these functions, as
-- the mirror's own connections do. Where row security would hide rows, they fail.

-- Records what a partition holds under a key whose row was changed: of a partition that is being sealed as captured, of one
-- below the cut-line as a correction.
CREATE OR REPLACE FUNCTION modak.put_change(kind text, id bigint, held_by text, key text, what smallint, tier bigint, image jsonb)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind = 'cold' THEN
        PERFORM modak.put_delta(id, key, what, tier, image);
        RETURN;
    END IF;
    INSERT INTO modak.mirror_captured AS d (table_id, partition_id, pk, op, tier_key, version, payload)
    VALUES (id, held_by, key, what, tier, nextval('modak.delta_version'), image)
    ON CONFLICT (table_id, pk) DO UPDATE
       SET partition_id = excluded.partition_id, op = excluded.op, tier_key = excluded.tier_key,
           version = nextval('modak.delta_version'), payload = excluded.payload;
END $$;

-- Refuses a change by a transaction whose snapshot is older than a column of the partition: it would leave the column out of
-- the row's payload, since it reads catalogs by that snapshot, and rows as they are. Columns are only ever added behind the
-- others. pg_class is read by the snapshot; has_column_privilege() looks at the present catalogs, and is NULL for no column.
CREATE OR REPLACE FUNCTION modak.refuse_outdated(leaf oid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known int := (SELECT c.relnatts FROM pg_class c WHERE c.oid = leaf);
BEGIN
    IF EXISTS (SELECT FROM generate_series(known + 1, known + 100) AS n(attnum)
                WHERE has_column_privilege(leaf, n.attnum::smallint, 'SELECT') IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
            MESSAGE = 'could not serialize access due to concurrent ALTER TABLE',
            HINT = 'The transaction might succeed if retried.';
    END IF;
END $$;

-- For each row of a partition that is being sealed, or that the cut-line has passed.
CREATE OR REPLACE FUNCTION modak.record_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    id CONSTANT bigint := TG_ARGV[0];
    kind CONSTANT text := TG_ARGV[4];
    held text;
    former record;
    present record;
    key text;
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM id THEN
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM modak.refuse_outdated(TG_RELID);
    END IF;
    held := modak.held_image(TG_RELID, TG_ARGV[2]::int, TG_ARGV[3]::int[]);
    IF TG_OP <> 'DELETE' THEN
        EXECUTE held INTO present USING NEW;
        key := present.pk;
        IF kind = 'cold' AND present.op = 0 AND modak.is_infinite(id, present.tier) THEN
            RAISE EXCEPTION USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
                MESSAGE = format('a row of "%s" below the cut-line has a finite tier key', TG_TABLE_NAME);
        END IF;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE held INTO former USING OLD;
        IF key IS DISTINCT FROM former.pk THEN
            PERFORM modak.put_change(kind, id, TG_ARGV[1], former.pk, former.op, former.tier, former.image);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM modak.put_change(kind, id, TG_ARGV[1], present.pk, present.op, present.tier, present.image);
    END IF;
    RETURN NULL;
END $$;

-- What was captured before is void. It is not deleted: a REPEATABLE READ transaction does not see all of it.
CREATE OR REPLACE FUNCTION modak.capture_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET sealed_lsn = NULL, captured_after = nextval('modak.delta_version')
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1];
    RETURN NULL;
END $$;

-- A TRUNCATE concerns rows at or above the cut-line: those of this partition stay in the lake.
CREATE OR REPLACE FUNCTION modak.cold_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_partition_root(TG_RELID)::oid::bigint IS DISTINCT FROM TG_ARGV[0]::bigint THEN
        RETURN NULL;
    END IF;
    UPDATE modak.partitions SET truncated = true
     WHERE table_id = TG_ARGV[0]::bigint AND partition_id = TG_ARGV[1] AND NOT truncated;
    RETURN NULL;
END $$;

-- On the DEFAULT partition: a row below the cut-line goes to modak.delta, as other triggers leave it, any other belongs
-- nowhere.
CREATE OR REPLACE FUNCTION modak.route_old_row() RETURNS trigger
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
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM modak.refuse_outdated(TG_RELID);
    END IF;
    EXECUTE format('WITH gone AS (DELETE FROM ONLY %s t WHERE %s RETURNING t.*)'
                   ' SELECT i.tier, i.pk, i.image FROM gone g CROSS JOIN LATERAL (%s) AS i(tier, pk, image)', TG_RELID::regclass,
                   matched, modak.row_image(TG_RELID, TG_ARGV[2]::int, keys, true, 'g'))
       INTO tier, key, image USING NEW;
    IF tier IS NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s t WHERE %s)', TG_RELID::regclass, matched)
           INTO kept USING NEW;
        IF kept THEN
            RAISE EXCEPTION USING ERRCODE = 'triggered_data_change_violation',
                MESSAGE = format('the row is below the cut-line, and a DELETE trigger keeps it in %s', TG_RELID::regclass),
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

-- Puts a partition's triggers in place, of one of the kinds above, or in the place of those that it has: their names are the
-- same for all kinds. Replacing takes SHARE ROW EXCLUSIVE, as creating does.
CREATE OR REPLACE FUNCTION modak.retain_triggers(root oid, leaf oid, held_by text, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arguments text;
    name text;
BEGIN
    SELECT format('%L, %L, %L, %L, %L', root::bigint, held_by, n.tier, n.keys, kind) INTO arguments
      FROM modak.key_numbers(root, leaf) n;
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_row AFTER %s ON %s FOR EACH ROW EXECUTE FUNCTION modak.%I(%s)',
                   CASE kind WHEN 'default' THEN 'INSERT OR UPDATE' ELSE 'INSERT OR UPDATE OR DELETE' END, leaf::regclass,
                   CASE kind WHEN 'default' THEN 'route_old_row' ELSE 'record_change' END, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER zz_modak_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass,
                   CASE kind WHEN 'capture' THEN 'capture_truncate' ELSE 'cold_truncate' END, arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER mirror_pump_truncate AFTER TRUNCATE ON %s FOR EACH STATEMENT'
                   ' EXECUTE FUNCTION modak.%I(%s)', leaf::regclass,
                   CASE kind WHEN 'capture' THEN 'mirror_truncated' ELSE 'cold_truncate' END, arguments);
    FOREACH name IN ARRAY ARRAY['zz_modak_row', 'zz_modak_truncate', 'mirror_pump_truncate'] LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', leaf::regclass, name);
    END LOOP;
END $$;

-- Whether a partition's row trigger is there, is ours and of this kind, and was not switched off. The kind is its last
-- argument; pg_trigger.tgargs ends each with a zero byte.
CREATE OR REPLACE FUNCTION modak.retained_by(leaf oid, kind text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                WHERE t.tgrelid = leaf AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
                  AND f.pronamespace = 'modak'::regnamespace AND f.proname IN ('record_change', 'route_old_row')
                  AND right(encode(t.tgargs, 'escape'), length(kind) + 8) = '\000' || kind || '\000')
$$;

REVOKE EXECUTE ON FUNCTION modak.put_change(text, bigint, text, text, smallint, bigint, jsonb),
    modak.retain_triggers(oid, oid, text, text) FROM PUBLIC;
