-- Flushes WAL that no commit flushes (mirror_pump/pipeline/session/listener.py).

-- name: flush
-- A commit flushes if its transaction has written something: here a message, which nobody reads.
SELECT w.flushed, CASE WHEN w.flushed = %(flushed_before)s::pg_lsn AND w.flushed < pg_current_wal_insert_lsn()
                       THEN pg_logical_emit_message(true, 'modak.flush', '') END
  FROM (SELECT pg_current_wal_flush_lsn() AS flushed) AS w;
