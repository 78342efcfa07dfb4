-- Waiting for the frontier, from within the database.

-- The mirrored tables of a slot whose readers do not see everything up to `target`, with the frontier that these readers have.
-- Those that are `awaited` get there by themselves. A table that has failed, or waits for its owner, does not. A first copy
-- has never had readers, and counts only while no other table has any.
CREATE OR REPLACE FUNCTION modak.mirror_behind(slot text, target bigint)
RETURNS TABLE (table_name text, state text, frontier pg_lsn, awaited boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH known AS (
    SELECT quote_ident(t.schema_name) || '.' || quote_ident(t.table_name) AS table_name, m.state, c.replicated_lsn AS frontier,
           m.state <> 'failed' AND NOT (m.state = 'waiting' AND m.error IS NOT NULL) AS goes_on
      FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) LEFT JOIN modak.cutline c USING (table_id)
     WHERE m.slot_name = slot AND m.state <> 'dropped' AND t.mode = 'mirrored')
SELECT k.table_name, k.state, '0/0'::pg_lsn + k.frontier,
       k.goes_on AND (k.frontier IS NOT NULL
                      OR NOT EXISTS (SELECT FROM known o WHERE o.goes_on AND o.frontier IS NOT NULL))
  FROM known k WHERE k.frontier IS NULL OR k.frontier < target ORDER BY k.table_name
$$;

-- Whether everything up to a WAL position (default: the present one) is readable in the lake within `timeout`. A table that is
-- copied again counts with the frontier that its readers keep. A NOTICE names the tables that are not there, also those that
-- it does not wait for. Wakes an idle pump by a message that is in the stream at once (before PostgreSQL 17 when the pump has
-- flushed it, half a second later), even if the caller's transaction is rolled back. True at once for a mirror without a stream: reads of tiered tables show what is committed.
CREATE OR REPLACE FUNCTION modak.wait_for(lsn pg_lsn DEFAULT NULL, timeout interval DEFAULT '5 seconds') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target_lsn pg_lsn := coalesce(lsn, pg_catalog.pg_current_wal_insert_lsn());
    target bigint := target_lsn - '0/0'::pg_catalog.pg_lsn;
    deadline timestamptz := pg_catalog.clock_timestamp() + timeout;
    checked_at timestamptz;
    passed boolean;
    behind text;
    -- Positions of another server are none of the frontier's.
    server text := (SELECT c.system_identifier FROM pg_catalog.pg_control_system() c);
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'active_sql_transaction',
            MESSAGE = 'a transaction that reads one snapshot cannot see the frontier move',
            HINT = 'wait before it begins, or in READ COMMITTED';
    END IF;
    LOOP
        SELECT bool_and(NOT s.streams OR s.system_identifier = server AND s.applied_lsn >= target AND NOT coalesce(b.awaited, false)),
               string_agg(pg_catalog.format('%s (%s, readable as of %s)', b.table_name, b.state, coalesce(b.frontier::text, 'never')), ', ')
          INTO passed, behind
          FROM modak.mirror_slots s LEFT JOIN LATERAL modak.mirror_behind(s.slot_name, target) b ON s.streams;
        IF passed OR pg_catalog.clock_timestamp() >= deadline THEN
            IF behind IS NOT NULL THEN
                RAISE NOTICE 'not at %: %', target_lsn, behind;
            END IF;
            RETURN passed;
        END IF;
        IF checked_at IS NULL OR pg_catalog.clock_timestamp() > checked_at + interval '2 seconds' THEN
            checked_at := pg_catalog.clock_timestamp();
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
