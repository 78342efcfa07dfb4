-- Heap retention: partitions that leave the heap, corrections of rows that it no longer holds, and pins of readers
-- (mirror_pump/pipeline/retention/partition_shedding.py, docs/retention.md).

ALTER TABLE modak.partitions
    ADD COLUMN relation_id bigint,
    ADD COLUMN sealed_lsn bigint,
    ADD COLUMN captured_after bigint,
    ADD COLUMN capture_limit bigint NOT NULL DEFAULT 100000,
    ADD COLUMN advanced_xid bigint,
    ADD COLUMN truncated boolean NOT NULL DEFAULT false,
    ADD COLUMN proven_at timestamptz,
    ADD COLUMN proven_as text,
    ADD COLUMN disproved_at timestamptz,
    ADD COLUMN reason text,
    ADD COLUMN attempts int NOT NULL DEFAULT 0,
    ADD COLUMN gone_as text;

ALTER TABLE modak.delta ADD COLUMN folded_sequence bigint;

ALTER TABLE modak.mirror_tables ADD COLUMN retention jsonb;

ALTER TABLE modak.read_pins
    ADD COLUMN reader text NOT NULL DEFAULT session_user || format(' in process %s', pg_backend_pid())
        || coalesce(', ' || nullif(current_setting('application_name', true), ''), ''),
    ADD COLUMN in_one_snapshot boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN modak.read_pins.in_one_snapshot IS
    'The reader takes heap and delta in one snapshot of the database, of the delta what is below its T: T moves on meanwhile';

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

-- SQL that gives, for a row of `relation` as $1, its tier key's value, its canonical key, and its payload: the whole row,
-- or the key columns alone. `keys` are attribute numbers in the order of the key.
-- A value is in the payload as to_jsonb() has it if that leads back to it, else as the text that its type prints:
-- json's spaces, -0, an array's odd bounds, and whatever the lake holds as text anyway.
CREATE FUNCTION modak.row_image(relation oid, tier int, keys int[], whole boolean) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text;
    listed text;
    checked text;
    tier_name text;
BEGIN
    WITH RECURSIVE reduced(attnum, type, typtype, category) AS (
        SELECT a.attnum, t.oid, t.typtype, t.typcategory FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
           AND (a.attgenerated = '' OR a.attgenerated = 's' AND modak.mirror_sends_generated(relation))
           AND (whole OR a.attnum = ANY (keys))
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
                      ORDER BY a.attnum) FILTER (WHERE NOT (j.as_text OR j.safe))
      INTO listed, checked
      FROM judged j JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = j.attnum;
    SELECT string_agg(format(CASE a.atttypid WHEN 16 THEN 'r.%I::text' ELSE 'format(''%%s'', r.%I)' END, a.attname), ', '
                      ORDER BY k.place)
      INTO parts
      FROM unnest(keys) WITH ORDINALITY AS k(attnum, place)
      JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = k.attnum;
    SELECT quote_ident(attname) INTO tier_name FROM pg_attribute WHERE attrelid = relation AND attnum = tier;
    RETURN format('SELECT modak.tier_value(r.%s), modak.canonical_pk(%s), ', tier_name, parts)
        || CASE WHEN checked IS NULL THEN 'i.payload' ELSE
           'i.payload || (SELECT coalesce(jsonb_object_agg(c.name, c.value), ''{}'') FROM (VALUES ' || checked
           || ') AS c(name, value, again) WHERE c.value IS DISTINCT FROM c.again)' END
        || format(' FROM (SELECT ($1).*) r CROSS JOIN LATERAL (SELECT to_jsonb(s) FROM (SELECT %s) s) AS i(payload)', listed)
        || CASE WHEN checked IS NULL THEN '' ELSE
           format(' CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, i.payload) p', relation::regclass) END;
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

CREATE OR REPLACE FUNCTION modak.mirror_unwatch(root oid) RETURNS void
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
    ELSIF NOT EXISTS (SELECT FROM modak.mirror_tables m WHERE m.table_id = id AND m.state = 'live' AND NOT m.stalled
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

DROP VIEW modak.status;
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
    modak.put_captured(bigint, text, text, smallint, bigint, jsonb),
    modak.retain_triggers(oid, oid, text, text), modak.advance(bigint, text, bigint, bigint), modak.seal(bigint, text),
    modak.unseal(bigint, text), modak.drop_proven(bigint, text, boolean) FROM PUBLIC;

-- As it was, and has corrections follow the columns' names.
CREATE OR REPLACE FUNCTION modak.mirror_tell(told_id bigint, present jsonb, exact boolean, settled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former jsonb;
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
    PERFORM modak.mirror_message(jsonb_build_object(
        'table', told_id, 'exact', exact AND modak.mirror_events(), 'settled', settled, 'shape', present,
        'missing', CASE WHEN exact AND present IS NOT NULL THEN modak.mirror_missing(told_id::oid, former) ELSE '{}' END,
        'filled', (SELECT coalesce(jsonb_agg(l -> 'id'), '[]')
                     FROM jsonb_array_elements(coalesce(nullif(present -> 'leaves', 'null'), '[]')) l
                     LEFT JOIN jsonb_array_elements(coalesce(nullif(former -> 'leaves', 'null'), '[]')) f
                       ON f -> 'id' = l -> 'id'
                    WHERE CASE WHEN f -> 'id' IS NULL THEN exact AND pg_relation_size((l ->> 'id')::oid) > 0
                               ELSE (f ->> 'file')::bigint <> pg_relation_filenode((l ->> 'id')::oid)::bigint END)));
END $$;
