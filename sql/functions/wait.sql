-- Waiting for the frontier, from within the database.

-- Whether the frontier of every live table passes a WAL position (default: the present one) within `timeout`. A table that is
-- copied again because the slot was lost counts with the frontier that its readers keep. Wakes an idle pump by a message that
-- is in the stream at once, even if the caller's transaction is rolled back. True at once for a mirror without a stream:
-- reads of tiered tables show what is committed.
CREATE OR REPLACE FUNCTION modak.wait_for(lsn pg_lsn DEFAULT NULL, timeout interval DEFAULT '5 seconds') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    target bigint := coalesce(lsn, pg_catalog.pg_current_wal_insert_lsn()) - '0/0'::pg_catalog.pg_lsn;
    deadline timestamptz := pg_catalog.clock_timestamp() + timeout;
    checked_at timestamptz;
    passed boolean;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING ERRCODE = 'active_sql_transaction',
            MESSAGE = 'a transaction that reads one snapshot cannot see the frontier move',
            HINT = 'wait before it begins, or in READ COMMITTED';
    END IF;
    LOOP
        SELECT NOT bool_or(s.streams) OR coalesce(min(c.replicated_lsn), max(s.applied_lsn)) >= target INTO passed
          FROM modak.mirror_slots s
          LEFT JOIN modak.mirror_tables m ON m.slot_name = s.slot_name
               AND (m.state = 'live' OR m.resync_gap AND m.state IN ('waiting', 'copying', 'filling')
                                        AND NOT (m.state = 'waiting' AND m.error IS NOT NULL))
          LEFT JOIN modak.cutline c USING (table_id);
        IF passed THEN
            RETURN true;
        END IF;
        IF pg_catalog.clock_timestamp() >= deadline THEN
            RETURN false;
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
