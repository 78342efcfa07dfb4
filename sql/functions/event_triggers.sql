-- The functions of the event triggers, which sql/queries/event_triggers.sql creates (only a superuser may). A user's statement
-- must not fail because of the mirror.

-- At the end of a command that changes relations, types or schemas: emits a note for every mirrored table that it changed.
CREATE OR REPLACE FUNCTION modak.mirror_ddl() RETURNS event_trigger
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
        -- The changed relations, the tables of which they are partitions, tables that became their partitions, and tables with
        -- columns of their row types (searched only if something depends on these).
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
            -- The transaction's snapshot may be older than a registration. Notes about tables that are not mirrored are ignored.
            PERFORM modak.mirror_message(jsonb_build_object('table', unseen.id, 'rewritten', 4))
               FROM (SELECT DISTINCT coalesce(pg_partition_root(relation)::oid, relation)::bigint AS id
                       FROM unnest(touched) relation) unseen
              WHERE NOT EXISTS (SELECT FROM modak.mirror_shapes s WHERE s.table_id = unseen.id);
        END IF;
        IF concerned IS NULL THEN
            RETURN;
        END IF;
        PERFORM modak.mirror_watch(table_id::oid, touched) FROM unnest(concerned) table_id WHERE modak.streams(table_id);
        PERFORM modak.take_touched(table_id, touched) FROM unnest(concerned) table_id;
    END IF;
    PERFORM modak.mirror_note(true, concerned, '{}');
EXCEPTION WHEN OTHERS THEN
    PERFORM modak.mirror_alarm(concerned);
    RAISE WARNING 'the mirror could not be told of this change and copies the table again: %', SQLERRM;
END $$;

-- When objects are dropped: emits notes for the mirrored tables that they belonged to.
CREATE OR REPLACE FUNCTION modak.mirror_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dropped bigint[];
    concerned bigint[];
BEGIN
    -- As an array, which is looked up by hash: a schema with thousands of tables may be dropped at once.
    SELECT array_agg(id) INTO dropped
      FROM pg_event_trigger_dropped_objects() d
      CROSS JOIN LATERAL (VALUES (d.objid::bigint), (pg_partition_root(d.objid)::oid::bigint)) known (id)
     WHERE d.classid = 'pg_class'::regclass AND NOT d.is_temporary AND id IS NOT NULL;
    SELECT array_agg(DISTINCT s.table_id) INTO concerned
      FROM modak.mirror_shapes s
     WHERE s.table_id = ANY (dropped) OR (s.shape -> 'identity' ->> 'index')::bigint = ANY (dropped)
        OR EXISTS (SELECT FROM jsonb_array_elements(coalesce(nullif(s.shape -> 'leaves', 'null'), '[]')) l
                    WHERE (l ->> 'id')::bigint = ANY (dropped) OR (l -> 'identity' ->> 'index')::bigint = ANY (dropped));
    IF concerned IS NOT NULL THEN
        PERFORM modak.mirror_note(true, concerned, '{}');
    END IF;
EXCEPTION WHEN OTHERS THEN
    PERFORM modak.mirror_alarm(concerned);
    RAISE WARNING 'the mirror could not be told of this change and copies the table again: %', SQLERRM;
END $$;

-- Whether no command in a text has a USING, but for plain casts of a column to its new type. Every keyword USING is found: a
-- keyword is written in ASCII letters, in any language of the database.
CREATE OR REPLACE FUNCTION modak.mirror_without_using(statements text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT statements IS NOT NULL
       AND (SELECT count(*) FROM regexp_matches(statements COLLATE "C", 'using', 'gi'))
         = (SELECT count(*) FROM regexp_matches(statements COLLATE "C",
                    '\malter\s+(?:column\s+)?("[^"]+"|[a-z_][a-z0-9_]*)\s+(?:set\s+data\s+)?type\s+'
                    '(integer|int|bigint|double\s+precision)\s+'
                    'using\s+("[^"]+"|[a-z_][a-z0-9_]*)\s*::\s*(integer|int|bigint|double\s+precision)(?=\s*(?:[,;]|$))',
                    'gi') AS cast_of
                  WHERE cast_of[1] = cast_of[3] AND cast_of[2] = cast_of[4])
$$;

-- Whether all that changed about a table's columns since its last note is that some have a wider type: one that every value is
-- cast to without a change of its number.
CREATE OR REPLACE FUNCTION modak.mirror_widened(mirrored bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(bool_and((f ->> 'type', a.atttypid::text) IN (
                    ('int2'::regtype::oid::text, 'int4'::regtype::oid::text), ('int2'::regtype::oid::text, 'int8'::regtype::oid::text),
                    ('int4'::regtype::oid::text, 'int8'::regtype::oid::text), ('float4'::regtype::oid::text, 'float8'::regtype::oid::text))
                  AND a.attgenerated = ''), false)
  FROM modak.mirror_shapes s
 CROSS JOIN jsonb_array_elements(coalesce(nullif(s.shape -> 'columns', 'null'), '[]')) f
  JOIN pg_attribute a ON a.attrelid = mirrored::oid AND a.attnum = (f ->> 'attnum')::int AND NOT a.attisdropped
 WHERE s.table_id = mirrored AND (a.atttypid, a.atttypmod) IS DISTINCT FROM ((f ->> 'type')::oid, (f ->> 'modifier')::int)
$$;

-- Before a heap is rewritten: emits a note with the reason (change_notes.py: REWRITTEN_TYPE, REWRITTEN_WIDENED). No trigger sees
-- a command's expressions. But a command that no function and no other trigger began was read from the session's text.
CREATE OR REPLACE FUNCTION modak.mirror_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rewritten oid := pg_event_trigger_table_rewrite_oid();
    mirrored bigint := coalesce(pg_partition_root(rewritten)::oid, rewritten)::bigint;
    reason int := pg_event_trigger_table_rewrite_reason();
    stack text;
BEGIN
    -- Has a line for every function that is being executed, and every statement that one of them executes.
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF reason = 4 AND strpos(stack, E'\n') = 0 AND modak.mirror_widened(mirrored)
       AND modak.mirror_without_using(current_query()) THEN
        reason := 65536;
    END IF;
    -- Does not check whether the table is mirrored: see modak.mirror_truncated().
    PERFORM modak.mirror_message(jsonb_build_object('table', mirrored, 'rewritten', reason));
END $$;

REVOKE EXECUTE ON FUNCTION modak.mirror_without_using(text), modak.mirror_widened(bigint) FROM PUBLIC;
