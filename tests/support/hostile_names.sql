-- Twins of what the words {words} name, in schema {schema} (hostile_names.py).
DO $plant$
DECLARE
    f record;
    number int := 0;
    words CONSTANT text[] := '{words}'::text[];
    rows_of text[];
BEGIN
    PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM set_config('check_function_bodies', 'off', true);
    FOR f IN
        SELECT p.proname AS name, format('%s', pg_get_function_arguments(p.oid)) AS parameters,
               pg_get_function_result(p.oid) AS result
          FROM pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (words) AND p.prokind = 'f'
           AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) t(type)
                            WHERE type IN ('internal'::regtype, 'cstring'::regtype, '"any"'::regtype, 'trigger'::regtype,
                                           'event_trigger'::regtype, 'fdw_handler'::regtype, 'table_am_handler'::regtype))
        UNION ALL
        -- Exact matches that PostgreSQL has no function for.
        SELECT w, t, 'pg_catalog.jsonb' FROM unnest(ARRAY['to_jsonb', 'to_json', 'row_to_json']) w,
               (SELECT format('pg_catalog.%I', c.relname) FROM pg_class c
                 WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname = ANY (words)
                 UNION ALL SELECT format('modak.%I', c.relname) FROM pg_class c
                 WHERE c.relnamespace = to_regnamespace('modak')::oid AND c.relkind IN ('r', 'v')) r(t)
        UNION ALL
        SELECT w, array_to_string(array_fill(t, ARRAY[n]), ', '), 'pg_catalog.text'
          FROM unnest(ARRAY['format', 'concat', 'concat_ws', 'coalesce', 'greatest', 'least', 'nullif']) w,
               unnest(ARRAY['text', 'name', 'bigint', 'int', 'oid', 'regclass', 'varchar', 'numeric']) t, generate_series(1, 5) n
        UNION ALL
        SELECT w, t, 'pg_catalog.text'
          FROM unnest(ARRAY['quote_ident', 'quote_literal', 'quote_nullable', 'lower', 'upper', 'length', 'string_agg', 'array_agg',
                            'count', 'max', 'min', 'sum', 'bool_or', 'bool_and', 'exists', 'to_regclass', 'unnest', 'cardinality']) w,
               unnest(ARRAY['text', 'name', 'bigint', 'int', 'smallint', 'oid', 'regclass', 'varchar', 'boolean']) t
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM trap.called(%L);'
                           ' %s END $f$', '{schema}', f.name, regexp_replace(f.parameters, '\mOUT ', 'OUT ', 'g'), f.result,
                           f.name || '(' || f.parameters || ')',
                           CASE WHEN f.result ~ '^(SETOF|TABLE)' THEN 'RETURN;' WHEN f.result = 'void' THEN 'RETURN;'
                                WHEN f.parameters ~ '\mOUT\M' THEN 'RETURN;' ELSE 'RETURN NULL;' END);
        EXCEPTION WHEN others THEN
            -- It is there already, or no function of PL/pgSQL can have such parameters.
        END;
    END LOOP;
    FOR f IN
        SELECT o.oprname AS name, format_type(o.oprleft, NULL) AS l, format_type(o.oprright, NULL) AS r,
               format_type(o.oprresult, NULL) AS result
          FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0 AND o.oprright <> 0
           AND o.oprname = ANY (ARRAY['=', '<>', '<', '>', '<=', '>=', '||', '+', '-', '*', '/', '%', '->', '->>', '#>', '@>', '<@',
                                      '?', '~', '!~', '~~', '!~~', '~*', '&&', '^', '#-', '^@', '&'])
        UNION ALL
        SELECT o, l, r, CASE o WHEN '||' THEN 'text' ELSE 'boolean' END
          FROM unnest(ARRAY['=', '<>', '||', '<', '>', '>=', '<=']) o,
               unnest(ARRAY['oid', 'regclass', 'regtype', 'regnamespace', 'text', 'name', '"char"', 'int', 'bigint', 'varchar']) l,
               unnest(ARRAY['oid', 'regclass', 'regtype', 'regnamespace', 'text', 'name', '"char"', 'int', 'bigint', 'varchar']) r
    LOOP
        BEGIN
            number := number + 1;
            EXECUTE format('CREATE FUNCTION %1$I.hostile_%2$s(%3$s, %4$s) RETURNS %5$s LANGUAGE plpgsql AS $f$ BEGIN'
                           ' PERFORM trap.called(%6$L); RETURN NULL; END $f$;'
                           'CREATE OPERATOR %1$I.%7$s (LEFTARG = %3$s, RIGHTARG = %4$s, FUNCTION = %1$I.hostile_%2$s)',
                           '{schema}', number, f.l, f.r, f.result, f.l || ' ' || f.name || ' ' || f.r, f.name);
        EXCEPTION WHEN others THEN
            -- It is there already, or no function of PL/pgSQL can have such parameters.
        END;
    END LOOP;
    -- Clients of Iceberg's JDBC catalog name its tables without a schema.
    EXECUTE format('CREATE VIEW %I.iceberg_tables AS SELECT ''''::text AS catalog_name, ''''::text AS table_namespace,'
                   ' ''''::text AS table_name, ''''::text AS metadata_location, ''''::text AS previous_metadata_location,'
                   ' ''''::text AS iceberg_type WHERE (SELECT trap.called(''iceberg_tables''))', '{schema}');
    EXECUTE format('GRANT SELECT ON %I.iceberg_tables TO PUBLIC', '{schema}');
    -- Relations, whose row types hide types of these names too.
    FOR f IN
        SELECT c.relname AS name, n.nspname AS schema,
               (SELECT string_agg(format('c.%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid <> 'anyarray'::regtype) AS columns
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname IN ('pg_catalog', 'modak') AND c.relkind IN ('r', 'v') AND c.relname = ANY (words)
    LOOP
        BEGIN
            EXECUTE format('CREATE VIEW %I.%I AS SELECT %s FROM %I.%I c WHERE (SELECT trap.called(%L))', '{schema}', f.name,
                           f.columns, f.schema, f.name, 'relation ' || f.name);
            EXECUTE format('GRANT SELECT ON %I.%I TO PUBLIC', '{schema}', f.name);
            EXECUTE format('CREATE FUNCTION %1$I.text(%1$I.%2$I) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN'
                           ' PERFORM trap.called(%3$L); RETURN NULL; END $f$;'
                           'CREATE CAST (%1$I.%2$I AS pg_catalog.text) WITH FUNCTION %1$I.text(%1$I.%2$I) AS IMPLICIT',
                           '{schema}', f.name, 'cast of ' || f.name);
        EXCEPTION WHEN others THEN
            -- It is there already, or no function of PL/pgSQL can have such parameters.
        END;
    END LOOP;
    FOR f IN
        SELECT t.typname AS name FROM pg_type t
         WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b' AND t.typelem = 0 AND t.typname = ANY (words)
    LOOP
        BEGIN
            EXECUTE format('CREATE DOMAIN %1$I.%2$I AS pg_catalog.%2$I CHECK (trap.called(%3$L))', '{schema}', f.name,
                           'type ' || f.name);
        EXCEPTION WHEN others THEN
            -- It is there already, or no function of PL/pgSQL can have such parameters.
        END;
    END LOOP;
END $plant$;
