-- For applications: upsert() and delete() write a row in the heap or below the cut-line, wherever it is, with the caller's
-- own privileges on the table.

-- The role that runs the statement, even within a SECURITY DEFINER function.
CREATE OR REPLACE FUNCTION modak.caller() RETURNS name
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END
$$;

-- Writes tombstones for rows below the cut-line, for a caller who may delete rows of the table. `keys`: an array of objects
-- with the key's columns, each key once. Returns how many of them are below the cut-line.
CREATE OR REPLACE FUNCTION modak.bury_all(relation regclass, keys jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    images jsonb;
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
        RETURN 0;
    END IF;
    SELECT n.tier, n.keys INTO tier_number, numbers FROM modak.key_numbers(relation, relation) n;
    IF EXISTS (SELECT FROM pg_attribute a CROSS JOIN jsonb_array_elements(keys) AS k(key)
                WHERE a.attrelid = relation AND a.attnum = ANY (numbers) AND coalesce(k.key -> a.attname::text, 'null') = 'null') THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the mirror has not followed a change of the key of %s yet', relation);
    END IF;
    SELECT o.image INTO images FROM modak.as_owner(
        relation,
        format('SELECT NULL::bigint, NULL::text, 1::smallint, jsonb_agg(jsonb_build_array(i.tier, i.pk, 1, i.image))'
               ' FROM jsonb_populate_recordset(NULL::%s, $1) k CROSS JOIN LATERAL (%s) AS i(tier, pk, image)',
               relation, modak.row_image(relation, tier_number, numbers, false, 'k')),
        keys) o;
    SELECT jsonb_agg(e.item) INTO images FROM jsonb_array_elements(images) AS e(item)
     WHERE (e.item ->> 0)::bigint < cut AND NOT modak.is_infinite(relation::oid::bigint, (e.item ->> 0)::bigint);
    IF images IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM modak.refuse_expired(relation::oid::bigint, (SELECT min((e.item ->> 0)::bigint)
                                                           FROM jsonb_array_elements(images) AS e(item)));
    PERFORM modak.put_deltas(relation::oid::bigint, images);
    RETURN jsonb_array_length(images);
END $$;

-- Writes a tombstone for a row below the cut-line. Returns whether it is there.
CREATE OR REPLACE FUNCTION modak.bury(relation regclass, key jsonb) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT modak.bury_all(relation, jsonb_build_array(key)) > 0';

-- The part of the catalog that callers of upsert() and delete() need, since they may not read its tables: the present name of
-- the tier key's column, and the cut-line. The cut-line is NULL if no row can be below it. Returns no row for a table that is
-- not mirrored.
CREATE OR REPLACE FUNCTION modak.tier_of(relation regclass) RETURNS TABLE (tier_column text, cut bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT (SELECT a.attname::text FROM modak.mirror_tables m CROSS JOIN jsonb_to_recordset(m.columns) AS c(attnum int, name text)
          JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = c.attnum
         WHERE m.table_id = t.table_id AND c.name = t.tier_key_col), modak.moved_cut(t.table_id)
  FROM modak.tables t WHERE t.table_id = relation::oid::bigint
$$;

-- Checks the columns that a caller names, and returns for each the SQL that extracts its value from the object $1.
CREATE OR REPLACE FUNCTION modak.given_columns(relation regclass, given jsonb)
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
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'the row is not a JSON object of its columns';
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

-- Writes a whole row by INSERT ... ON CONFLICT (key) DO UPDATE on the table, whose triggers move rows below the cut-line to
-- modak.delta. A column that is not given gets its default. Returns where the row was written.
CREATE OR REPLACE FUNCTION modak.upsert(relation regclass, image jsonb) RETURNS text
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

-- Deletes the row of a key, wherever it is. Returns where the row was or would have been: below the cut-line the tombstone is
-- written without a check whether the row exists.
CREATE OR REPLACE FUNCTION modak.delete(relation regclass, key jsonb) RETURNS text
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
