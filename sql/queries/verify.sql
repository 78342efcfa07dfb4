-- The statements of `verify` (mirror_pump/ops/verify/verification.py).

-- name: live
-- All tables with a heap that can be compared.
SELECT table_id FROM modak.mirror_tables
 WHERE slot_name = %(slot)s AND state <> 'dropped' ORDER BY table_id;

-- name: bytes
-- Bytes of heaps with their TOAST. Ignores heaps that no longer exist.
SELECT coalesce(sum(pg_table_size(relation::oid)), 0)::bigint FROM unnest(%(relations)s::bigint[]) relation;

-- name: pin
-- The frontier, every table's cut-line, and the lake at the frontier, as of one moment, and pinned while they are compared.
-- For a table with heap retention the catalog's pointer names the lake at the frontier: its published snapshot holds only the
-- rows below the cut-line. The function reads all of this under the pin.
SELECT p.pin_id, p.table_id, p.replicated_lsn AS frontier,
       CASE WHEN modak.has_cutline(t.mode, t.heap_retention_lag, p.tier_key_hi)
            THEN p.metadata_location ELSE p.lake_props ->> 'metadata_location' END AS location,
       p.tier_key_hi AS cut, p.state = 'live' AS live, p.start_lsn
  FROM modak.pin_tables(%(table_ids)s::bigint[], interval '6 hours') p JOIN modak.tables t USING (table_id)
 WHERE p.metadata_location IS NOT NULL;

-- name: copies
-- The progress of those tables that are being copied, and do not wait until somebody acts.
SELECT m.table_id, m.start_lsn, m.generation, m.state, m.live_after_lsn,
       (SELECT count(*) FILTER (WHERE c.done_at IS NOT NULL) FROM modak.copy_chunks c
         WHERE c.table_id = m.table_id) AS chunks_done
  FROM modak.mirror_tables m WHERE m.table_id = ANY (%(table_ids)s) AND m.state IN ('waiting', 'copying')
   AND NOT (m.state = 'waiting' AND m.error IS NOT NULL)
 ORDER BY m.table_id;

-- name: release
DELETE FROM modak.read_pin_rows WHERE pin_id = ANY (%(pins)s);

-- name: applied
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;
