-- What `verify` reads (mirror_pump/ops/verify.py).

-- name: live
SELECT table_id FROM modak.mirror_tables WHERE slot_name = %(slot)s ORDER BY table_id;

-- name: pin
-- F and every table's S of one moment, kept from expiry while they are compared.
WITH pinned AS (
    INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
    SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '6 hours'
      FROM modak.cutline c
     WHERE c.table_id = ANY (%(table_ids)s)
    RETURNING pin_id, table_id)
SELECT p.pin_id, c.table_id, c.replicated_lsn, c.lake_props ->> 'metadata_location'
  FROM pinned p JOIN modak.cutline c USING (table_id);

-- name: release
DELETE FROM modak.read_pins WHERE pin_id = ANY (%(pins)s);

-- name: applied
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: oldest_transaction
SELECT pid, coalesce(application_name, ''), now() - xact_start FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1;
