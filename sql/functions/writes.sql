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
           format('CASE WHEN pg_catalog.jsonb_typeof($1 OPERATOR(pg_catalog.->) %1$L) OPERATOR(pg_catalog.=) ''string'''
                  ' THEN ($1 OPERATOR(pg_catalog.->>) %1$L)::%2$s'
                  ' WHEN pg_catalog.jsonb_typeof($1 OPERATOR(pg_catalog.->) %1$L) OPERATOR(pg_catalog.=) ''null'' THEN NULL'
                  ' ELSE (pg_catalog.jsonb_populate_record(NULL::%3$s, $1)).%1$I END',
                  a.attname, modak.type_name(a.atttypid, a.atttypmod), relation),
           a.attname = ANY (key), a.attidentity = 'a'
      FROM pg_attribute a
     WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND given ? a.attname::text
     ORDER BY a.attnum;
END $$;

-- The statement of upsert(), for the row $1, and the table's cut-line. Every name in it has its schema, also those of operators.
CREATE OR REPLACE FUNCTION modak.upsert_statement(relation regclass, image jsonb, OUT statement text, OUT cut bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text;
    expressions text;
    conflict text;
    assignments text;
    tier text;
BEGIN
    SELECT format('modak.tier_value(t.%I)', o.tier_column), o.cut INTO tier, cut FROM modak.tier_of(relation) o;
    SELECT string_agg(quote_ident(g.name), ', '), string_agg(g.expression, ', '),
           string_agg(quote_ident(g.name), ', ') FILTER (WHERE g.in_key)
      INTO names, expressions, conflict FROM modak.given_columns(relation, image) g;
    SELECT string_agg(format('%1$I = excluded.%1$I', a.attname), ', ') INTO assignments
      FROM pg_attribute a
     WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a'
       AND NOT EXISTS (SELECT FROM modak.given_columns(relation, image) g WHERE g.in_key AND g.name = a.attname);
    statement := format('INSERT INTO %s AS t (%s) OVERRIDING SYSTEM VALUE VALUES (%s) ON CONFLICT (%s) DO %s RETURNING %s',
                        relation, names, expressions, conflict, coalesce('UPDATE SET ' || assignments, 'NOTHING'),
                        CASE WHEN cut IS NULL THEN 'NULL::bigint' ELSE tier END);
END $$;

-- Writes a whole row by INSERT ... ON CONFLICT (key) DO UPDATE on the table, whose triggers move rows below the cut-line to
-- modak.delta. A column that is not given gets its default. Returns where the row was written. Runs with the search_path of its
-- callers, which the table's own triggers and defaults may rely on.
CREATE OR REPLACE FUNCTION modak.upsert(relation regclass, image jsonb) RETURNS text
LANGUAGE plpgsql SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    statement pg_catalog.text;
    tier bigint;
    cut bigint;
BEGIN
    SELECT s.statement, s.cut INTO statement, cut FROM modak.upsert_statement(relation, image) s;
    EXECUTE statement INTO tier USING image;
    RETURN CASE WHEN tier OPERATOR(pg_catalog.<) cut THEN 'delta' ELSE 'heap' END;
END $$;

-- The statement of delete(), for the row $1, as upsert_statement().
CREATE OR REPLACE FUNCTION modak.delete_statement(relation regclass, key jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text;
    numbers int[];
    extra text;
BEGIN
    SELECT string_agg(format('%s AS %I', g.expression, g.name), ', ') FILTER (WHERE g.in_key),
           array_agg(a.attnum::int) FILTER (WHERE g.in_key), min(g.name::text) FILTER (WHERE NOT g.in_key)
      INTO given, numbers, extra
      FROM modak.given_columns(relation, key) g
      JOIN pg_attribute a ON a.attrelid = relation AND a.attname = g.name AND NOT a.attisdropped;
    IF extra IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('column "%s" is not part of the key of %s', extra, relation);
    END IF;
    RETURN format('DELETE FROM %s t USING (SELECT %s) k WHERE %s', relation, given, modak.key_match(relation, numbers, 'k'));
END $$;

-- Deletes the row of a key, wherever it is. Returns where the row was or would have been: below the cut-line the tombstone is
-- written without a check whether the row exists. Runs with the search_path of its callers, as upsert().
CREATE OR REPLACE FUNCTION modak.delete(relation regclass, key jsonb) RETURNS text
LANGUAGE plpgsql SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    deleted bigint;
BEGIN
    EXECUTE modak.delete_statement(relation, key) USING key;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF deleted OPERATOR(pg_catalog.>) 0 THEN
        RETURN 'heap';
    END IF;
    RETURN CASE WHEN modak.bury(relation, key) THEN 'delta' ELSE 'nothing' END;
END $$;
