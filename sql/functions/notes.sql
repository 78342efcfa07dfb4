-- Notes: transactional messages which say, at the exact position in the stream, that a mirrored table has changed its shape.

-- Puts a note into the stream, at its place in this transaction. An empty message follows it: logical decoding gives a message
-- the position at which its record ends. That is also where the next record begins, which is the position of a row change. Where
-- the note was emitted in a subtransaction and the next change was not, PostgreSQL may send that change first. It may still do so
-- with the empty message, which no program reads.
CREATE OR REPLACE FUNCTION modak.mirror_message(content jsonb) RETURNS pg_lsn
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The server sends a message's bytes as they are, whatever the database's encoding.
    PERFORM pg_logical_emit_message(true, 'mirror-pump', convert_to(
                encode(sha256(convert_to(secret || encode(sha256(convert_to(
                    secret || pg_current_xact_id()::xid::text || ' ' || content::text, 'UTF8')), 'hex'), 'UTF8')), 'hex')
                || content::text, 'UTF8'))
       FROM modak.mirror_secret;
    IF NOT FOUND THEN
        RAISE WARNING USING MESSAGE = 'the mirror is not told of this change: modak.mirror_secret is empty',
            HINT = 'Tell the mirror''s administrator to run `mirror-pump init`.';
    END IF;
    RETURN pg_logical_emit_message(true, 'mirror-pump.end', '');
END $$;

-- The values that older rows have in columns that a command added with a constant default (pg_attribute.attmissingval), as
-- the stream prints them, by attribute number. Contains a column only if `former` lacks it, every leaf has the same value,
-- its type prints alike in any session, and the text is short enough for a note.
CREATE OR REPLACE FUNCTION modak.mirror_missing(root oid, former jsonb) RETURNS jsonb
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

-- Corrections name columns as the heap does. Renames the columns in them that were renamed since `former`, and removes
-- those that were dropped.
CREATE OR REPLACE FUNCTION modak.mirror_rename_payloads(id bigint, former jsonb, present jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed record;
BEGIN
    FOR changed IN
        SELECT f ->> 'name' AS former_name, p ->> 'name' AS name
          FROM jsonb_array_elements(coalesce(nullif(former -> 'columns', 'null'), '[]')) f
          LEFT JOIN jsonb_array_elements(coalesce(nullif(present -> 'columns', 'null'), '[]')) p
            ON p -> 'attnum' = f -> 'attnum'
         WHERE present IS NOT NULL AND p ->> 'name' IS DISTINCT FROM f ->> 'name'
         ORDER BY p ->> 'name' NULLS FIRST
    LOOP
        UPDATE modak.delta
           SET payload = payload - changed.former_name
                         || CASE WHEN changed.name IS NULL THEN '{}'
                                 ELSE jsonb_build_object(changed.name, payload -> changed.former_name) END
         WHERE table_id = id AND payload ? changed.former_name AND (changed.name IS NULL OR NOT payload ? changed.name);
        UPDATE modak.mirror_captured
           SET payload = payload - changed.former_name
                         || CASE WHEN changed.name IS NULL THEN '{}'
                                 ELSE jsonb_build_object(changed.name, payload -> changed.former_name) END
         WHERE table_id = id AND payload ? changed.former_name AND (changed.name IS NULL OR NOT payload ? changed.name);
    END LOOP;
END $$;

-- Columns added since `former` that are NULL in every row so far: null, by attribute number.
CREATE OR REPLACE FUNCTION modak.mirror_added(former jsonb, present jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(jsonb_object_agg(p ->> 'attnum', NULL::text), '{}')
  FROM jsonb_array_elements(nullif(present -> 'columns', 'null')) p
  JOIN pg_type t ON t.oid = (p ->> 'type')::oid
 WHERE former -> 'columns' <> 'null' AND NOT ((p ->> 'computed')::boolean OR (p ->> 'filled')::boolean)
   AND t.typdefault IS NULL
   AND NOT EXISTS (SELECT FROM jsonb_array_elements(former -> 'columns') f WHERE f -> 'attnum' = p -> 'attnum')
$$;

-- Adds new columns to corrections, with the values that older rows have there.
CREATE OR REPLACE FUNCTION modak.mirror_complete_payloads(id bigint, present jsonb, added jsonb, missing jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM modak.complete_corrections(id, jsonb_agg(jsonb_build_object(
                'attnum', p -> 'attnum', 'type', p -> 'type', 'modifier', p -> 'modifier',
                'text', missing -> (p ->> 'attnum'))), true)
       FROM jsonb_array_elements(nullif(present -> 'columns', 'null')) p
      WHERE (added || missing) ? (p ->> 'attnum')
        AND EXISTS (SELECT FROM modak.delta d WHERE d.table_id = id
                    UNION ALL SELECT FROM modak.mirror_captured c WHERE c.table_id = id)
     HAVING count(*) > 0;
END $$;

-- What is remembered of the values that older rows have in new columns, with those that were found now. Attribute numbers are
-- never used twice, and the first value counts: a later rewrite of the heap takes it from the catalogs.
CREATE OR REPLACE FUNCTION modak.mirror_keep_missing(kept jsonb, present jsonb, found jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(jsonb_object_agg(f.key, jsonb_build_object('text', f.value, 'type', p -> 'type', 'modifier', p -> 'modifier')),
                '{}') || kept
  FROM jsonb_each(found) f
  JOIN jsonb_array_elements(nullif(present -> 'columns', 'null')) p ON p ->> 'attnum' = f.key
$$;

-- The remembered values of columns that still have their first type, by attribute number.
CREATE OR REPLACE FUNCTION modak.mirror_kept_missing(id bigint, present jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(jsonb_object_agg(k.key, k.value -> 'text'), '{}')
  FROM modak.mirror_shapes s CROSS JOIN jsonb_each(s.missing) k
  JOIN jsonb_array_elements(nullif(present -> 'columns', 'null')) p
    ON p ->> 'attnum' = k.key AND p -> 'type' = k.value -> 'type' AND p -> 'modifier' = k.value -> 'modifier'
 WHERE s.table_id = id
$$;

-- Emits a note with the present shape of one table. `exact`: the note directly follows the change in its transaction. False
-- while an event trigger is disabled, since that trigger may have missed other changes. The note's `filled` names partitions
-- whose rows are not in the stream: new ones with at least one page, and those whose file was replaced. A `settled` note has
-- the values of all columns that were ever added: earlier notes may be lost with their slot.
CREATE OR REPLACE FUNCTION modak.mirror_tell(told_id bigint, present jsonb, exact boolean, settled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former jsonb;
    added jsonb;
    found jsonb := '{}';
BEGIN
    SELECT shape INTO former FROM modak.mirror_shapes WHERE table_id = told_id FOR NO KEY UPDATE;
    PERFORM modak.mirror_rename_payloads(told_id, former, present);
    IF present IS NOT NULL THEN
        added := modak.mirror_added(former, present);
        IF exact THEN
            found := added || modak.mirror_missing(told_id::oid, former);
        END IF;
        PERFORM modak.mirror_complete_payloads(told_id, present, added, found);
    END IF;
    -- Once only: a second update of a row in a transaction checks its foreign key, which fails in a transaction whose snapshot is
    -- older than the last change of modak.mirror_tables.
    UPDATE modak.mirror_shapes s
       SET shape = present, noted_at = now(), missing = modak.mirror_keep_missing(s.missing, present, found)
     WHERE s.table_id = told_id;
    IF present IS NOT NULL AND settled THEN
        found := modak.mirror_kept_missing(told_id, present);
    END IF;
    PERFORM modak.mirror_message(jsonb_build_object(
        'table', told_id, 'exact', exact AND modak.mirror_events(), 'settled', settled, 'shape', present,
        'missing', found,
        'filled', (SELECT coalesce(jsonb_agg(l -> 'id'), '[]')
                     FROM jsonb_array_elements(coalesce(nullif(present -> 'leaves', 'null'), '[]')) l
                     LEFT JOIN jsonb_array_elements(coalesce(nullif(former -> 'leaves', 'null'), '[]')) f
                       ON f -> 'id' = l -> 'id'
                    WHERE CASE WHEN f -> 'id' IS NULL THEN exact AND pg_relation_size((l ->> 'id')::oid) > 0
                               ELSE (f ->> 'file')::bigint <> pg_relation_filenode((l ->> 'id')::oid)::bigint END)));
END $$;

-- Compares tables with their last notes, emits notes for those that differ, and returns their number. Outside of the
-- transaction of the change (not `exact`), a lock ensures that no other change of the table is in progress. A table that we
-- may not lock can no longer be mirrored: its note makes it fail. `forced` tables get a note in any case, marked `settled`:
-- every transaction that wrote to them before the last note has ended.
CREATE OR REPLACE FUNCTION modak.mirror_note(exact boolean, only_ids bigint[], forced bigint[]) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
    present jsonb;
    sent int := 0;
BEGIN
    FOR known IN
        SELECT s.table_id, s.shape AS former, modak.mirror_shape(s.table_id::oid) AS present
          FROM modak.mirror_shapes s WHERE only_ids IS NULL OR s.table_id = ANY (only_ids) ORDER BY s.table_id
    LOOP
        CONTINUE WHEN known.former IS NOT DISTINCT FROM known.present AND NOT known.table_id = ANY (forced);
        present := known.present;
        IF present IS NOT NULL AND NOT exact AND has_schema_privilege(present ->> 'schema', 'USAGE')
           AND has_table_privilege(known.table_id::oid, 'SELECT') THEN
            EXECUTE format('LOCK TABLE %I.%I IN ACCESS SHARE MODE', present ->> 'schema', present ->> 'name');
            SELECT modak.mirror_shape(known.table_id::oid) INTO present;
        END IF;
        -- Only types can change without a lock on the table. A change of theirs that was not noted counts as a difference.
        PERFORM modak.mirror_tell(known.table_id, present, exact, known.table_id = ANY (forced)
                                  AND known.former -> 'types' IS NOT DISTINCT FROM present -> 'types');
        sent := sent + 1;
    END LOOP;
    RETURN sent;
END $$;

-- For an event trigger that failed: emits notes that say only that these tables have changed. Their changes are not applied
-- before another note describes them.
CREATE OR REPLACE FUNCTION modak.mirror_alarm(concerned bigint[]) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT count(modak.mirror_message(jsonb_build_object('table', table_id, 'rewritten', 4)))
  FROM modak.mirror_shapes WHERE concerned IS NULL OR table_id = ANY (concerned)
$$;

REVOKE EXECUTE ON FUNCTION modak.mirror_message(jsonb), modak.mirror_missing(oid, jsonb),
    modak.mirror_rename_payloads(bigint, jsonb, jsonb), modak.mirror_complete_payloads(bigint, jsonb, jsonb, jsonb),
    modak.mirror_keep_missing(jsonb, jsonb, jsonb), modak.mirror_kept_missing(bigint, jsonb),
    modak.mirror_tell(bigint, jsonb, boolean, boolean),
    modak.mirror_note(boolean, bigint[], bigint[]), modak.mirror_alarm(bigint[]) FROM PUBLIC;
