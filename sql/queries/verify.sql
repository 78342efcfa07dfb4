-- What `verify` reads (mirror_pump/ops/verify/verification.py).

-- name: live
SELECT table_id FROM modak.mirror_tables WHERE slot_name = %(slot)s ORDER BY table_id;

-- name: bytes
-- Of heaps, with their TOAST; nothing of those that are gone.
SELECT coalesce(sum(pg_table_size(relation::oid)), 0)::bigint FROM unnest(%(relations)s::bigint[]) relation;

-- name: pin
-- F, every table's T, and the lake at F, of one moment, kept from expiry while they are compared. S of a table with heap
-- retention is what is below T; the lake at F is what the catalog's pointer names.
WITH pinned AS (
    -- It reads nothing of the delta.
    INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, in_one_snapshot)
    SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '6 hours', true
      FROM modak.cutline c
     WHERE c.table_id = ANY (%(table_ids)s)
    RETURNING pin_id, table_id)
SELECT p.pin_id, c.table_id, c.replicated_lsn,
       CASE WHEN t.heap_retention_lag IS NULL AND c.tier_key_hi = -9223372036854775808
            THEN c.lake_props ->> 'metadata_location' ELSE i.metadata_location END,
       c.tier_key_hi, m.state = 'live', m.start_lsn
  FROM pinned p JOIN modak.cutline c USING (table_id) JOIN modak.tables t USING (table_id)
  JOIN modak.mirror_tables m USING (table_id)
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table;

-- name: copies
-- Of those tables that are being copied, how far they are.
SELECT m.table_id, m.start_lsn, m.generation, m.stalled, m.live_after_lsn,
       (SELECT count(*) FILTER (WHERE c.done_at IS NOT NULL) FROM modak.copy_chunks c WHERE c.table_id = m.table_id)
  FROM modak.mirror_tables m WHERE m.table_id = ANY (%(table_ids)s) AND m.state = 'copying' ORDER BY 1;

-- name: release
DELETE FROM modak.read_pins WHERE pin_id = ANY (%(pins)s);

-- name: applied
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: oldest_transaction
SELECT pid, coalesce(application_name, ''), now() - xact_start FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1;
