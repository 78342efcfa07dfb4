-- The mirror as Iceberg's REST catalog shows it, and the leases of its moments (mirror_pump/source/catalog/served_tables.py).

-- name: frontier
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: lock_pins
-- As modak.pin_tables takes it: before the snapshot of the statement that reads what is pinned.
LOCK TABLE modak.read_pin_rows IN ROW EXCLUSIVE MODE;

-- name: pin
-- The lake alone is read, neither heap nor corrections: no partition and no correction has to wait for these pins.
SELECT p.table_id, p.pin_id
  FROM unnest(%(table_ids)s::bigint[], %(snapshot_ids)s::bigint[]) AS wanted(table_id, snapshot_id)
 CROSS JOIN LATERAL modak.pin_tables(ARRAY[wanted.table_id], make_interval(secs => %(seconds)s),
                                     snapshot_id => wanted.snapshot_id, cut => 9223372036854775807) p;

-- name: name_lease
UPDATE modak.read_pins SET reader = session_user || %(lease)s WHERE pin_id = ANY (%(pins)s);

-- name: leased
-- The unexpired pins of a lease, whichever process took it.
SELECT p.pin_id, p.table_id, p.pinned_lake_snapshot_id AS snapshot_id
  FROM modak.read_pin_rows p
  JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %(slot)s AND p.reader = session_user || %(lease)s AND p.expires_at > now()
 ORDER BY p.pin_id;

-- name: renew
-- Nothing that has expired: what it named may be gone.
UPDATE modak.read_pins SET expires_at = greatest(expires_at, now() + make_interval(secs => %(seconds)s))
 WHERE pin_id = ANY (%(pins)s) AND expires_at > now();

-- name: release
DELETE FROM modak.read_pins WHERE pin_id = ANY (%(pins)s);
