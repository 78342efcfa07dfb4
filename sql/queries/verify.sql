-- The statements of `verify` (mirror_pump/ops/verify/verification.py).

-- name: live
-- All tables with a heap that can be compared.
SELECT table_id FROM modak.mirror_tables
 WHERE slot_name = %(slot)s AND state <> 'dropped' ORDER BY table_id;

-- name: bytes
-- Bytes of heaps with their TOAST. Ignores heaps that no longer exist.
SELECT coalesce(sum(pg_table_size(relation::oid)), 0)::bigint FROM unnest(%(relations)s::bigint[]) relation;

-- name: copies
-- The progress of those tables that are being copied, and do not wait until somebody acts.
SELECT m.table_id, m.start_lsn, m.generation, m.state, m.live_after_lsn,
       (SELECT count(*) FILTER (WHERE c.done_at IS NOT NULL) FROM modak.copy_chunks c
         WHERE c.table_id = m.table_id) AS chunks_done
  FROM modak.mirror_tables m WHERE m.table_id = ANY (%(table_ids)s) AND m.state IN ('waiting', 'copying')
   AND NOT (m.state = 'waiting' AND m.error IS NOT NULL)
 ORDER BY m.table_id;

-- name: applied
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;
