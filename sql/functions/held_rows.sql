-- What a partition holds of a changed key, for its row triggers. Composing and planning that statement for each row would take most of
-- a trigger's time. So a partition with triggers has a function that contains the statement, and sessions keep its plan: held_ and the
-- partition's OID. It belongs to the table's owner (modak.give_function).
--
-- The statement is right for one shape of the partition: its owner, names, and columns with their types. Triggers pass the present shape,
-- and a function for another one returns nothing. Then, or without a function, they compose the statement. So they do not depend on when
-- functions are made. A partition with types of users' has none, since their casts and operators change without changing its shape; but
-- enums, and domains of PostgreSQL's own types, may be in columns outside of the key, as long as they have no cast to JSON.

-- Whether a type of a user's is printed, and made JSON of, as PostgreSQL's own are: an enum or a domain without a cast to JSON.
CREATE OR REPLACE FUNCTION modak.is_plain_type(type oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_type t WHERE t.oid = type AND (t.typtype = 'e' OR t.typtype = 'd' AND NOT modak.is_user_type(t.typbasetype)))
   AND NOT EXISTS (SELECT FROM pg_cast c WHERE c.castsource = type AND c.casttarget IN ('json'::regtype, 'jsonb'::regtype))
$$;

-- The shape of a partition and of its trigger's arguments; NULL if it can have no function. Runs with the search_path of its callers,
-- which call it for each row.
CREATE OR REPLACE FUNCTION modak.row_shape(leaf oid, tier text, keys text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT format('%s %s %s %I.%I', tier, keys, c.relowner, n.nspname, c.relname) || s.columns
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             CROSS JOIN (
                   SELECT CASE WHEN bool_and(NOT modak.is_user_type(a.atttypid)
                                             OR a.attnum <> ALL (keys::int[]) AND modak.is_plain_type(a.atttypid))
                               THEN string_agg(format(' %s %I %s %s%s', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated), ''
                                               ORDER BY a.attnum) END
                          -- Payloads have generated columns that the publication sends.
                          || CASE WHEN bool_or(a.attgenerated = 's') THEN modak.mirror_sends_generated(leaf)::text ELSE '' END AS columns
                     FROM pg_attribute a WHERE a.attrelid = leaf AND a.attnum > 0 AND NOT a.attisdropped) s
             WHERE c.oid = leaf);
END $$;

-- Whether a partition has a function of this shape.
CREATE OR REPLACE FUNCTION modak.has_held_function(leaf oid, shape text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_proc p WHERE p.oid = to_regprocedure(format('modak.held_%s(anyelement, anyelement, text)', leaf))
                  AND position(quote_literal(shape) IN p.prosrc) > 0)
$$;

-- Makes the function of a partition if it can have one and lacks it. The caller holds a lock on the partition, so that its shape does
-- not change.
CREATE OR REPLACE FUNCTION modak.make_held_function(leaf oid, tier int, keys int[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shape CONSTANT text := modak.row_shape(leaf, tier::text, keys::text);
    statement text;
    name CONSTANT text := format('modak.held_%s', leaf);
BEGIN
    IF shape IS NULL OR modak.has_held_function(leaf, shape) THEN
        RETURN;
    END IF;
    statement := modak.held_image_of_two(leaf, tier, keys, '($1)', '($2)');
    IF modak.row_shape(leaf, tier::text, keys::text) IS DISTINCT FROM shape THEN
        -- A schema may be renamed in spite of the lock.
        RETURN;
    END IF;
    -- By the key's index, also if the plan is made while the partition is small.
    PERFORM modak.give_function(
        (SELECT c.relowner FROM pg_class c WHERE c.oid = leaf), name || '(anyelement, anyelement, text)',
        name || '(given anyelement, other anyelement, shape text, OUT tier bigint, OUT pk text, OUT op smallint, OUT image jsonb)',
        'SET search_path = pg_catalog, pg_temp SET enable_seqscan = off', E'#variable_conflict use_column\n',
        format('IF $3 OPERATOR(pg_catalog.=) %L THEN SELECT f.* INTO tier, pk, op, image FROM (%s) f; END IF;', shape, statement));
END $$;

-- What a partition holds of the key of a row: tier value, key, op, and payload, as modak.held_image_of_two() has them. `shape`: the
-- partition's present one; NULL if its function must not be called.
CREATE OR REPLACE FUNCTION modak.held_row(leaf oid, shape text, tier_number int, keys int[], given anyelement, other anyelement,
                                          OUT tier bigint, OUT pk text, OUT op smallint, OUT image jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    IF shape IS NOT NULL THEN
        BEGIN
            EXECUTE format('SELECT * FROM modak.held_%s($1, $2, $3)', leaf) INTO tier, pk, op, image USING given, other, shape;
            PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
            IF op IS NOT NULL THEN
                RETURN;
            END IF;
        EXCEPTION WHEN syntax_error_or_access_rule_violation THEN
            -- There is none, or its owner has altered it.
        END;
    END IF;
    SELECT o.tier, o.pk, o.op, o.image INTO tier, pk, op, image
      FROM modak.as_owner(leaf, modak.held_image_of_two(leaf, tier_number, keys, '($1)[1]', '($1)[2]'), ARRAY[given, other]) o;
END $$;

-- Makes the functions of partitions whose shape has changed, or that have none, and drops those of partitions without triggers. Passes
-- over partitions that are being altered. Returns how many there were.
CREATE OR REPLACE FUNCTION modak.sweep_held_functions(slot text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition record;
    unused regprocedure;
    swept int := 0;
BEGIN
    FOR partition IN
        SELECT t.tgrelid AS leaf, a.numbers[1]::int AS tier, a.numbers[2]::int[] AS keys
          FROM modak.partitions p JOIN modak.mirror_tables m USING (table_id)
          JOIN pg_trigger t ON t.tgrelid = p.relation_id::oid AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
         -- The trigger's third and fourth argument; each ends with a zero byte.
         CROSS JOIN regexp_match(encode(t.tgargs, 'escape'), '\\000(\d+)\\000(\{[\d,]+\})\\000\w+\\000$') AS a(numbers)
         CROSS JOIN modak.row_shape(t.tgrelid, a.numbers[1], a.numbers[2]) AS present(shape)
         WHERE m.slot_name = slot AND p.state IN ('sealing', 'tiering', 'tiered') AND present.shape IS NOT NULL
           AND NOT modak.has_held_function(t.tgrelid, present.shape)
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', partition.leaf::regclass);
            PERFORM modak.make_held_function(partition.leaf, partition.tier, partition.keys);
            swept := swept + 1;
        EXCEPTION WHEN lock_not_available OR syntax_error_or_access_rule_violation OR internal_error THEN
            -- The partition is being altered, or rights on schema modak granted. Triggers compose the statement until the next sweep.
        END;
    END LOOP;
    FOR unused IN
        SELECT p.oid FROM pg_proc p
         WHERE p.pronamespace = 'modak'::regnamespace AND p.proname ~ '^held_[0-9]+$'
           AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = substr(p.proname, 6)::oid AND t.tgname = 'zz_modak_row')
    LOOP
        EXECUTE format('DROP FUNCTION %s', unused);
        swept := swept + 1;
    END LOOP;
    RETURN swept;
END $$;

REVOKE EXECUTE ON FUNCTION modak.make_held_function(oid, int, int[]), modak.held_row(oid, text, int, int[], anyelement, anyelement),
    modak.sweep_held_functions(text) FROM PUBLIC;
