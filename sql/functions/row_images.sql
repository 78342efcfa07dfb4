-- The form of a row in corrections: the tier key's value, the canonical key, and the payload, which is the row as JSON. A
-- column may change its name or type at any time, so most of these functions generate SQL for the present relation, and the
-- caller runs it for a row.
-- payload_columns(), row_payload() and canonical_key_sql() run with the search_path of their callers, which call them for
-- each row, because setting search_path is expensive.

-- The seam protocol's key: a single part as it is, several parts joined by chr(31). They are in the order of the table's columns
-- (modak.tables.primary_key_cols), which need not be that of the primary key.
CREATE OR REPLACE FUNCTION modak.canonical_pk(VARIADIC parts text[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN cardinality(parts) = 1 THEN parts[1]
            ELSE (SELECT string_agg(replace(replace(part, '\', '\\'), chr(31), '\' || chr(31)), chr(31) ORDER BY place)
                    FROM unnest(parts) WITH ORDINALITY AS p(part, place)) END
$$;

-- The attribute numbers of the tier key and of the key's columns, in the key's order, in `leaf`: `root` or a partition of it.
-- The catalog has names as of the frontier. Columns may have been renamed since, but keep their numbers.
CREATE OR REPLACE FUNCTION modak.key_numbers(root oid, leaf oid, OUT tier int, OUT keys int[])
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

-- Whether a type was created in this database and not by initdb (16384 is FirstNormalObjectId).
CREATE OR REPLACE FUNCTION modak.is_user_type(type oid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT type OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid';

-- The name of a type with its schema, unless it is a keyword of SQL's.
CREATE OR REPLACE FUNCTION modak.type_name(type oid, modifier int) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace AND modifier < 0 THEN format('pg_catalog.%I', t.typname)
            ELSE format_type(type, modifier) END
  FROM pg_type t WHERE t.oid = type
$$;

-- The condition that row `t` of `leaf` has the key of the row `other`, with the operators of the key's index: those of an
-- extension's types may be in any schema. The operators of enums and composites do not accept domains.
CREATE OR REPLACE FUNCTION modak.key_match(leaf oid, keys int[], other text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN string_agg(format('t.%1$I%2$s OPERATOR(%3$I.%4$s) %5$s.%1$I%2$s', a.attname, '::' || b.name,
                             coalesce(o.nspname, 'pg_catalog'), coalesce(o.oprname, '='), other), ' AND ')
      FROM pg_attribute a
      LEFT JOIN LATERAL (
           WITH RECURSIVE reduced(type, base) AS (
               SELECT t.oid, t.typbasetype FROM pg_type t
                WHERE modak.is_user_type(a.atttypid) AND t.oid = a.atttypid AND t.typtype = 'd'
               UNION ALL SELECT t.oid, t.typbasetype FROM reduced r JOIN pg_type t ON t.oid = r.base)
           SELECT modak.type_name(r.type, -1) AS name FROM reduced r WHERE r.base = 0) b ON true
      LEFT JOIN LATERAL (
           SELECT n.nspname, o.oprname
             FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) AS k(attnum, class)
             JOIN pg_opclass c ON c.oid = k.class
             JOIN pg_am btree ON btree.oid = c.opcmethod AND btree.amname = 'btree'
             -- Strategy 3 of a B-tree is equality.
             JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype
                  AND m.amoprighttype = c.opcintype AND m.amopmethod = btree.oid AND m.amopstrategy = 3
             JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
            WHERE modak.is_user_type(a.atttypid) AND i.indrelid = leaf AND i.indisunique AND i.indisvalid
              AND k.attnum = a.attnum
            LIMIT 1) o ON true
     WHERE a.attrelid = leaf AND a.attnum = ANY (keys);
END $$;

-- The columns of a payload (`numbers`: their attribute numbers; NULL: all), and how JSON represents each one's values.
-- `as_text`: by the text that the type prints, since to_jsonb() would lose something (the spaces of json), or since the lake
-- has text anyway (an array of arrays). `exact`: the result of to_jsonb() always converts back to the value. For the other
-- columns, each value is checked.
CREATE OR REPLACE FUNCTION modak.payload_columns(relation oid, numbers int[])
RETURNS TABLE (attnum smallint, name name, as_text boolean, exact boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    -- Each column's type and the types that it consists of: base types of domains, element types of arrays.
    WITH RECURSIVE reduced(attnum, name, type, typtype, category) AS (
        SELECT a.attnum, a.attname, t.oid, t.typtype, t.typcategory FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
           AND (a.attgenerated = '' OR a.attgenerated = 's' AND modak.mirror_sends_generated(relation))
           AND (numbers IS NULL OR a.attnum = ANY (numbers))
        UNION ALL
        SELECT r.attnum, r.name, t.oid, t.typtype, t.typcategory
          FROM reduced r JOIN pg_type b ON b.oid = r.type
          JOIN pg_type t ON t.oid = CASE WHEN b.typtype = 'd' THEN b.typbasetype
                                         WHEN b.typcategory = 'A' THEN b.typelem END)
    SELECT r.attnum, r.name,
           bool_or(r.typtype = 'c'
                   -- int2vector and oidvector are in the category of arrays, but to_jsonb() makes no JSON arrays of them.
                   OR r.type IN ('json'::regtype, 'jsonb'::regtype, 'int2vector'::regtype, 'oidvector'::regtype)
                   OR modak.is_user_type(r.type) AND EXISTS (
                      SELECT FROM pg_cast c
                       WHERE c.castsource = r.type AND c.casttarget IN ('json'::regtype, 'jsonb'::regtype)))
           -- Nested arrays.
           OR count(*) FILTER (WHERE r.category = 'A') > 1,
           bool_and(r.type IN ('bool'::regtype, 'bytea'::regtype, 'int8'::regtype, 'int2'::regtype, 'int4'::regtype,
                               'text'::regtype, 'varchar'::regtype, 'numeric'::regtype, 'uuid'::regtype))
      FROM reduced r GROUP BY r.attnum, r.name;
END $$;

-- SQL for the canonical key of row `r`; `keys` are attribute numbers in the order of the key.
CREATE OR REPLACE FUNCTION modak.canonical_key_sql(relation oid, keys int[]) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN format('modak.canonical_pk(%s)', string_agg(
               format(CASE a.atttypid WHEN 'bool'::regtype THEN 'r.%I::text' ELSE 'format(''%%s'', r.%I)' END, a.attname),
               ', ' ORDER BY k.place))
      FROM unnest(keys) WITH ORDINALITY AS k(attnum, place)
      JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = k.attnum;
END $$;

-- For readers: the key of modak.delta (`pk`) of a row of a mirrored table. `given`: an object with the key's columns, by the names that
-- they have in the table; others are ignored. The parts are in the order of the table's columns, as modak.tables.primary_key_cols
-- names them, which need not be that of the primary key.
CREATE OR REPLACE FUNCTION modak.delta_pk(relation regclass, given jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    numbers int[];
    lacking text;
    columns text;
    pk text;
BEGIN
    IF NOT EXISTS (SELECT FROM modak.tables t WHERE t.table_id = relation::oid::bigint) THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_table', MESSAGE = format('%s is not mirrored', relation);
    ELSIF jsonb_typeof(given) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the key is not a JSON object of its columns';
    END IF;
    SELECT n.keys INTO numbers FROM modak.key_numbers(relation, relation) n;
    SELECT min(a.attname) FILTER (WHERE coalesce(given -> a.attname::text, 'null') = 'null'),
           string_agg(format('CASE jsonb_typeof($1 -> %1$L) WHEN ''string'' THEN ($1 ->> %1$L)::%2$s'
                             ' ELSE (jsonb_populate_record(NULL::%3$s, jsonb_build_object(%1$L, $1 -> %1$L))).%1$I END AS %1$I',
                             a.attname, format_type(a.atttypid, a.atttypmod), relation), ', ')
      INTO lacking, columns
      FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum = ANY (numbers);
    IF lacking IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'not_null_violation',
            MESSAGE = format('there is no value of key column "%s" of %s', lacking, relation);
    END IF;
    EXECUTE format('SELECT %s FROM (SELECT %s) r', modak.canonical_key_sql(relation, numbers), columns) INTO pk USING given;
    RETURN pk;
END $$;

-- SQL for the payload of row `r` with the columns `numbers` (NULL: all): an expression, and the FROM items after `r` that it
-- needs. The payload has the result of to_jsonb() for a value if that converts back to the value, else the text that the
-- type prints (for -0, or an array with unusual bounds).
CREATE OR REPLACE FUNCTION modak.row_payload(relation oid, numbers int[], OUT expression text, OUT further text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- The payload's columns, of row `r`.
    listed pg_catalog.text;
    -- For the columns that have to be checked: name, value, and the value that its JSON converts back to (row `p`).
    checked pg_catalog.text;
    -- Names and types of the payload's columns.
    typed pg_catalog.text;
BEGIN
    SELECT string_agg(CASE WHEN c.as_text
                           THEN format('CASE WHEN r.%1$I IS DISTINCT FROM NULL THEN format(''%%s'', r.%1$I) END AS %1$I', c.name)
                           ELSE format('r.%I', c.name) END, ', ' ORDER BY c.attnum),
           string_agg(format('(%1$L, format(''%%s'', r.%1$I), format(''%%s'', p.%1$I))', c.name), ', ' ORDER BY c.attnum)
               FILTER (WHERE NOT (c.as_text OR c.exact)),
           string_agg(format('%I %s', c.name, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY c.attnum)
      INTO listed, checked, typed
      FROM modak.payload_columns(relation, numbers) c
      JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = c.attnum;
    -- Not to_jsonb(s), which would be that of a column named s.
    further := format(' CROSS JOIN LATERAL (SELECT to_jsonb(s.*) FROM (SELECT %s) s) AS i(payload)', listed);
    expression := 'i.payload';
    IF checked IS NULL THEN
        RETURN;
    END IF;
    expression := 'i.payload || (SELECT coalesce(jsonb_object_agg(c.name, c.value), ''{}'') FROM (VALUES ' || checked
        || ') AS c(name, value, again) WHERE c.value IS DISTINCT FROM c.again)';
    further := further || CASE WHEN numbers IS NULL
        THEN format(' CROSS JOIN LATERAL jsonb_populate_record(NULL::%s, i.payload) p', relation::regclass)
        -- jsonb_populate_record() would set the other columns to NULL, which their types may not allow.
        ELSE format(' CROSS JOIN LATERAL jsonb_to_record(i.payload) AS p(%s)', typed) END;
END $$;

-- SQL that returns the tier key's value, the canonical key and the payload of the row given by the SQL text `from_row`. The
-- payload is the whole row, or the key columns alone. `keys` are attribute numbers in the order of the key.
CREATE OR REPLACE FUNCTION modak.row_image(relation oid, tier int, keys int[], whole boolean, from_row text DEFAULT '($1)')
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tier_name name := (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum = tier);
BEGIN
    RETURN (SELECT format('SELECT modak.tier_value(r.%I), %s, %s FROM (SELECT %s.*) r%s', tier_name,
                          modak.canonical_key_sql(relation, keys), p.expression, from_row, p.further)
              FROM modak.row_payload(relation, CASE WHEN NOT whole THEN keys END) p);
END $$;

-- SQL that returns, for a row of `leaf`, what the partition holds for its key now: tier value, key, op, and the payload: the
-- whole row (op 0), or the key alone if there is no row (op 1). The row is given by the SQL text `from_row`. A trigger's NEW may
-- be outdated: other triggers may change the row again, and their changes are captured before the change that fired them.
CREATE OR REPLACE FUNCTION modak.held_image(leaf oid, tier int, keys int[], from_row text DEFAULT '($1)') RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('SELECT k.tier, k.pk, CASE WHEN h.pk = k.pk THEN 0 ELSE 1 END::smallint AS op,'
                  ' CASE WHEN h.pk = k.pk THEN h.image ELSE k.image END AS image FROM (%s OFFSET 0) AS k(tier, pk, image)'
                  ' LEFT JOIN LATERAL (SELECT i.pk, i.image FROM ONLY %s t CROSS JOIN LATERAL (%s) AS i(tier, pk, image)'
                  ' WHERE %s OFFSET 0) h ON true',
                  modak.row_image(leaf, tier, keys, false, from_row), leaf::regclass,
                  modak.row_image(leaf, tier, keys, true, 't'), modak.key_match(leaf, keys, from_row));
END $$;

-- The SQL condition that two rows differ in the key's columns.
CREATE OR REPLACE FUNCTION modak.key_differs(leaf oid, keys int[], one text, other text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT string_agg(format('format(''%%s'', %2$s.%1$I) <> format(''%%s'', %3$s.%1$I)', a.attname, one, other), ' OR ')
  FROM pg_attribute a WHERE a.attrelid = leaf AND a.attnum = ANY (keys)
$$;

-- As held_image(), of the first of two rows. The op is 2 higher if their keys differ.
CREATE OR REPLACE FUNCTION modak.held_image_of_two(leaf oid, tier int, keys int[], one text, other text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('SELECT h.tier, h.pk, (h.op + CASE WHEN %s THEN 2 ELSE 0 END)::smallint, h.image FROM (%s) h',
                  modak.key_differs(leaf, keys, one, other), modak.held_image(leaf, tier, keys, format('(%s)', one)));
END $$;

-- Corrections between two tier values, with their keys as texts, and how the heap partition differs from each: the row is
-- `missing` in the heap, `extra` in the heap, or `different`.
CREATE OR REPLACE FUNCTION modak.delta_against(root oid, leaf oid, lo bigint, hi bigint)
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
        texts, leaf::regclass, modak.row_image(leaf, tier, keys, true, 't'), modak.key_match(leaf, keys, 'k'))
      USING root::bigint, lo, hi;
END $$;

-- Functions that contain these statements as they were (modak.make_held_function) are made anew by the pump.
DO $$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'modak'::regnamespace AND p.proname ~ '^held_[0-9]+$' LOOP
        EXECUTE format('DROP FUNCTION %s', made);
    END LOOP;
END $$;
