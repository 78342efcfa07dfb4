-- Labelled loads: batches of rows that are written once, however often they are sent.
--
-- A load is one transaction: begin_load() claims the label, the caller's DML writes the rows with the caller's own rights, and
-- finish_load() records the result under the label. A label is `staged` from begin_load() on, which only its own transaction can
-- see: a deferred trigger refuses to commit it. So a load that was interrupted leaves no trace, and a label that others see is
-- either `committed`, together with its rows, or `failed`, without any.
--
-- While a transaction has a staged label, rows that it inserts below the cut-line stay in the DEFAULT partition
-- (modak.route_old_row), and changes of partitions on their way out are noted only (modak.record_change): settle_load() makes
-- captured changes and corrections of all of them at once. finish_load() settles what is left, and without finish_load() there is
-- no commit, so no other transaction finds a row in the DEFAULT partition, or a change that is not captured.

-- Refuses a caller that may not write to the table. What a load may do in the end is decided by its DML.
CREATE OR REPLACE FUNCTION modak.check_loader(relation regclass) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM modak.tables t WHERE t.table_id = relation::oid::bigint) THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_table', MESSAGE = format('%s is not registered', relation);
    END IF;
    IF NOT (has_any_column_privilege(modak.caller(), relation, 'INSERT') OR has_table_privilege(modak.caller(), relation, 'DELETE')) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = format('permission denied for table %s', relation);
    END IF;
END $$;

-- The result of the load that was committed under a label; NULL if there is none. `content` identifies the load: it is an error
-- if another load was committed under the label. Without `content` nothing is compared.
CREATE OR REPLACE FUNCTION modak.recorded_load(relation regclass, load_label text, content jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    recorded jsonb;
BEGIN
    PERFORM modak.check_loader(relation);
    SELECT l.result || jsonb_build_object('loaded_at', l.updated_at) INTO recorded FROM modak.load_labels l
     WHERE l.table_id = relation::oid::bigint AND l.label = load_label AND l.state = 'committed';
    IF recorded IS NOT NULL AND content IS NOT NULL AND recorded -> 'content' IS DISTINCT FROM content THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation',
            MESSAGE = format('another load was committed under the label "%s" of %s', load_label, relation),
            DETAIL = (SELECT string_agg(format('%s was %s, and is %s', k.key, coalesce(recorded -> 'content' ->> k.key, 'not given'),
                                               coalesce(content ->> k.key, 'not given')), '; ' ORDER BY k.key)
                        FROM jsonb_object_keys(coalesce(recorded -> 'content', '{}') || content) AS k(key)
                       WHERE recorded -> 'content' -> k.key IS DISTINCT FROM content -> k.key);
    END IF;
    RETURN recorded;
END $$;

-- Claims a label for this transaction. Returns NULL, or the result of the load that was committed under it: then there is nothing
-- to do. Waits for another transaction that has claimed it.
CREATE OR REPLACE FUNCTION modak.begin_load(relation regclass, load_label text, content jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM modak.check_loader(relation);
    INSERT INTO modak.load_labels AS l (table_id, label, state, staged_files)
    VALUES (relation::oid::bigint, load_label, 'staged', jsonb_build_object('transaction', pg_current_xact_id()::text))
    ON CONFLICT (table_id, label) DO UPDATE
       SET state = 'staged', staged_files = excluded.staged_files, result = NULL, created_at = now(), updated_at = now()
     WHERE l.state <> 'committed';
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN modak.recorded_load(relation, load_label, content);
END $$;

-- Where the rows of a load go, for callers who may not read the catalog: the tier key's present column and its type, the cut-line
-- (NULL if no row can be below it), and the retention line (NULL if there is none). Returns no row for a table that is not
-- registered.
CREATE OR REPLACE FUNCTION modak.load_bounds(relation regclass)
RETURNS TABLE (tier_column text, tier_type text, cut bigint, retention_line bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT o.tier_column, t.tier_key_type, o.cut, c.retention_line
  FROM modak.tables t CROSS JOIN modak.tier_of(relation) o LEFT JOIN modak.cutline c USING (table_id)
 WHERE t.table_id = relation::oid::bigint
$$;

-- SQL that takes up to 1000 rows behind the place $1 out of a DEFAULT partition. Returns their number, the last place, and an
-- array of [tier value, key, op, payload]. It ends after 8 MiB of text, so that the array fits into one value.
CREATE OR REPLACE FUNCTION modak.settled_rows(leaf oid, tier int, keys int[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('WITH sized AS MATERIALIZED (SELECT c.ctid AS place, octet_length(format(''%%s'', c)) AS size FROM ONLY %1$s c'
              ' WHERE c.ctid > $1 LIMIT 1000),'
              ' chosen AS MATERIALIZED (SELECT s.place FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before'
              ' FROM sized) s WHERE s.before < 8388608),'
              ' gone AS (DELETE FROM ONLY %1$s t WHERE t.ctid = ANY (ARRAY(SELECT place FROM chosen)) RETURNING t.*)'
              ' SELECT (SELECT count(*) FROM chosen), (SELECT max(place)::text FROM chosen), 0::smallint,'
              ' jsonb_agg(jsonb_build_array(i.tier, i.pk, 0, i.image)) FROM gone g CROSS JOIN LATERAL (%2$s) AS i(tier, pk, image)',
              leaf::regclass, modak.row_image(leaf, tier, keys, true, 'g'))
$$;

-- Refuses rows, as an array of [tier value, key, op, payload], that have no place below the cut-line: those of an infinite tier
-- key, or below the retention line. Of rows that have no partition (`routed`) also those above the cut-line, and all of a table
-- that keeps its heap.
CREATE OR REPLACE FUNCTION modak.refuse_unplaced(relation regclass, rows jsonb, routed boolean) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cut CONSTANT bigint := modak.moved_cut(relation::oid::bigint);
    lowest CONSTANT bigint := (SELECT c.retention_line FROM modak.cutline c WHERE c.table_id = relation::oid::bigint);
    -- The tier value of -infinity, which the lake cannot hold.
    infinite CONSTANT bigint := (SELECT -9223372036854775808 FROM modak.tables t
                                  WHERE t.table_id = relation::oid::bigint AND t.tier_key_type <> 'bigint');
    keeps CONSTANT boolean := modak.keeps_heap(relation::oid::bigint);
    misplaced jsonb;
BEGIN
    SELECT e.item INTO misplaced FROM jsonb_array_elements(rows) AS e(item)
     WHERE e.item ->> 2 = '0'
       AND (routed AND (keeps OR (e.item ->> 0)::bigint < cut IS NOT TRUE) OR (e.item ->> 0)::bigint = infinite) LIMIT 1;
    IF misplaced IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = format('no partition of relation %s found for row', relation),
            DETAIL = format('The row is %s.', misplaced -> 3);
    END IF;
    SELECT e.item INTO misplaced FROM jsonb_array_elements(rows) AS e(item) WHERE (e.item ->> 0)::bigint < lowest LIMIT 1;
    IF misplaced IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = format('a row of %s is below the retention line', relation),
            DETAIL = format('The row is %s.', misplaced -> 3);
    END IF;
END $$;

-- Makes corrections of the rows that this transaction's load has put into the DEFAULT partition, as its triggers have left them.
-- Each pass looks at every row once; a last one finds none.
CREATE OR REPLACE FUNCTION modak.settle_default(relation regclass, leaf oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place tid := '(0,0)';
    statement text;
    taken bigint;
    last text;
    rows jsonb;
BEGIN
    SELECT modak.settled_rows(leaf, n.tier, n.keys) INTO statement FROM modak.key_numbers(relation, leaf) n;
    LOOP
        SELECT o.tier, o.pk, o.image INTO taken, last, rows FROM modak.as_owner(leaf, statement, place) o;
        EXIT WHEN taken = 0 AND place = '(0,0)';
        place := coalesce(last, '(0,0)')::tid;
        CONTINUE WHEN taken = 0;
        IF taken IS DISTINCT FROM jsonb_array_length(rows) THEN
            RAISE EXCEPTION USING ERRCODE = 'triggered_data_change_violation',
                MESSAGE = format('a row is below the cut-line, and a DELETE trigger keeps it in %s', leaf::regclass),
                HINT = 'create that trigger with WHEN (pg_trigger_depth() = 0): rows leave the DEFAULT partition by a DELETE';
        END IF;
        PERFORM modak.refuse_unplaced(relation, rows, true);
        PERFORM modak.put_deltas(relation::oid::bigint, rows);
    END LOOP;
END $$;

-- Captures, or makes corrections of, what a partition holds of the rows that this transaction's load has changed there.
CREATE OR REPLACE FUNCTION modak.settle_changes(relation regclass, leaf oid, held_by text, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id CONSTANT bigint := relation::oid::bigint;
    statement text;
    images text[];
    rows jsonb;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        PERFORM modak.refuse_outdated(leaf);
    END IF;
    SELECT format('SELECT NULL::bigint, NULL::text, 0::smallint, jsonb_agg(jsonb_build_array(h.tier, h.pk, h.op, h.image))'
                  ' FROM (SELECT DISTINCT ON (h.pk) h.* FROM unnest($1::%s[]) AS c'
                  ' CROSS JOIN LATERAL (%s) h ORDER BY h.pk) h', leaf::regclass, modak.held_image(leaf, n.tier, n.keys, 'c'))
      INTO statement FROM modak.key_numbers(relation, leaf) n;
    LOOP
        WITH sized AS MATERIALIZED (
            SELECT r.ctid AS place, octet_length(r.image) AS size FROM modak.mirror_load_rows r
             WHERE r.table_id = id AND r.relation_id = leaf::bigint LIMIT 1000),
        chosen AS MATERIALIZED (
            SELECT s.place FROM (SELECT place, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM sized) s
             WHERE s.before < 8388608),
        gone AS (DELETE FROM modak.mirror_load_rows r WHERE r.ctid = ANY (ARRAY(SELECT place FROM chosen)) RETURNING r.image)
        SELECT array_agg(g.image) INTO images FROM gone g;
        EXIT WHEN images IS NULL;
        SELECT o.image INTO rows FROM modak.as_owner(leaf, statement, images) o;
        IF kind = 'cold' THEN
            PERFORM modak.refuse_unplaced(relation, rows, false);
            PERFORM modak.put_deltas(id, rows);
        ELSE
            PERFORM modak.put_captured(id, held_by, rows);
        END IF;
    END LOOP;
END $$;

-- Captures changes of many keys of a partition that is being sealed, as put_change() does of one.
CREATE OR REPLACE FUNCTION modak.put_captured(id bigint, held_by text, rows jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO modak.mirror_captured AS d (table_id, partition_id, pk, op, tier_key, version, payload)
SELECT id, held_by, i.item ->> 1, (i.item ->> 2)::smallint, (i.item ->> 0)::bigint, nextval('modak.delta_version'), i.item -> 3
  FROM (SELECT e.item FROM jsonb_array_elements(rows) AS e(item) ORDER BY e.item ->> 1) i
ON CONFLICT (table_id, pk) DO UPDATE
   SET partition_id = excluded.partition_id, op = excluded.op, tier_key = excluded.tier_key,
       version = nextval('modak.delta_version'), payload = excluded.payload
$$;

-- Does for all rows that this transaction's load has written what triggers do for each row of other writers: rows leave the
-- DEFAULT partition, and changes of partitions on their way out are captured, or become corrections.
CREATE OR REPLACE FUNCTION modak.settle_load(relation regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET row_security = off AS $$
DECLARE
    id CONSTANT bigint := relation::oid::bigint;
    leaf oid := (SELECT nullif(p.partdefid, 0) FROM pg_partitioned_table p WHERE p.partrelid = relation);
    held_by text;
    kind text;
BEGIN
    IF NOT EXISTS (SELECT FROM modak.load_labels l WHERE l.table_id = id AND l.state = 'staged'
                      AND l.staged_files ->> 'transaction' = pg_current_xact_id()::text) THEN
        RETURN;
    END IF;
    IF leaf IS NOT NULL AND modak.retained_by(leaf, 'default') THEN
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            PERFORM modak.refuse_outdated(leaf);
        END IF;
        PERFORM modak.settle_default(relation, leaf);
    END IF;
    -- After that: triggers of its DELETE may have changed other partitions.
    FOR leaf, held_by, kind IN SELECT DISTINCT r.relation_id::oid, r.partition_id, r.kind FROM modak.mirror_load_rows r WHERE r.table_id = id
    LOOP
        PERFORM modak.settle_changes(relation, leaf, held_by, kind);
    END LOOP;
END $$;

-- Records the result of a load, which has to be the last of its transaction. `outcome` has the load's content under the key
-- `content`.
CREATE OR REPLACE FUNCTION modak.finish_load(relation regclass, load_label text, outcome jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM modak.check_loader(relation);
    PERFORM modak.settle_load(relation);
    UPDATE modak.load_labels l SET state = 'committed', staged_files = NULL, result = outcome, updated_at = now()
     WHERE l.table_id = relation::oid::bigint AND l.label = load_label AND l.state = 'staged'
       AND l.staged_files ->> 'transaction' = pg_current_xact_id()::text;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('this transaction has not begun a load with the label "%s" of %s', load_label, relation);
    END IF;
    INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
    VALUES (gen_random_uuid(), relation::oid::bigint, 'load', 'done', jsonb_build_object('label', load_label) || outcome);
END $$;

-- Records that a load was refused, in a transaction of its own. The label stays free: the next load with it is attempted.
CREATE OR REPLACE FUNCTION modak.fail_load(relation regclass, load_label text, outcome jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM modak.check_loader(relation);
    INSERT INTO modak.load_labels AS l (table_id, label, state, result)
    VALUES (relation::oid::bigint, load_label, 'failed', outcome)
    ON CONFLICT (table_id, label) DO UPDATE SET result = excluded.result, updated_at = now() WHERE l.state = 'failed';
END $$;

-- At the commit of a transaction that has begun a load. Staged labels of other programs name no transaction.
CREATE OR REPLACE FUNCTION modak.load_is_finished() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM modak.load_labels l WHERE l.table_id = NEW.table_id AND l.label = NEW.label AND l.state = 'staged') THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('the load with the label "%s" was begun and not finished', NEW.label);
    END IF;
    RETURN NULL;
END $$;

-- Constraint triggers cannot be replaced.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid = 'modak.load_labels'::pg_catalog.regclass AND t.tgname = 'load_is_finished') THEN
        CREATE CONSTRAINT TRIGGER load_is_finished AFTER INSERT OR UPDATE ON modak.load_labels
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state = 'staged' AND NEW.staged_files ? 'transaction')
            EXECUTE FUNCTION modak.load_is_finished();
    END IF;
END $$;

REVOKE EXECUTE ON FUNCTION modak.settled_rows(oid, int, int[]), modak.refuse_unplaced(regclass, jsonb, boolean),
    modak.settle_default(regclass, oid), modak.settle_changes(regclass, oid, text, text), modak.put_captured(bigint, text, jsonb)
    FROM PUBLIC;
