-- Pins of tables and of change feeds (mirror_pump/source/catalog/pins.py).

-- name: lock
-- As modak.pin_tables takes it: before the snapshot of the statement that reads what is pinned.
LOCK TABLE modak.read_pin_rows IN ROW EXCLUSIVE MODE;

-- name: published
SELECT pin_id, table_id AS subject, lake_snapshot_id AS snapshot_id, tier_key_hi AS cut
  FROM modak.pin_tables(%(subjects)s::bigint[], make_interval(secs => %(seconds)s));

-- name: snapshots
-- Snapshots and cut-lines (NULL: the present one).
SELECT p.pin_id, p.table_id AS subject, n.snapshot_id, coalesce(n.cut, p.tier_key_hi) AS cut
  FROM unnest(%(subjects)s::bigint[], %(snapshot_ids)s::bigint[], %(cuts)s::bigint[]) AS n(table_id, snapshot_id, cut)
 CROSS JOIN LATERAL modak.pin_tables(ARRAY[n.table_id], make_interval(secs => %(seconds)s),
                                     snapshot_id => n.snapshot_id, cut => n.cut) p;

-- name: feed
-- One that bears the name of a lease (NULL: none) is found by any process.
INSERT INTO modak.feed_pin_rows (feed_id, snapshot_id, expires_at, reader)
SELECT f.feed_id, %(snapshot_id)s, now() + make_interval(secs => %(seconds)s),
       session_user || coalesce(%(lease)s::text, format(' in process %%s', pg_backend_pid()))
  FROM modak.change_feeds f
 WHERE f.feed_id = %(subject)s
RETURNING pin_id, feed_id AS subject, snapshot_id, NULL::bigint AS cut;

-- name: tie
-- The pins end soon if this session does.
UPDATE modak.read_pins SET ends_with = pg_backend_pid() WHERE pin_id = ANY (%(pins)s);

-- name: name
UPDATE {relation} SET reader = session_user || %(lease)s WHERE pin_id = ANY (%(pins)s);

-- name: leased
-- The unexpired pins of a lease on tables of a mirror, whichever process took it, or also whichever role.
SELECT p.pin_id, p.table_id AS subject, p.pinned_lake_snapshot_id AS snapshot_id, p.pinned_tier_key_hi AS cut
  FROM modak.read_pin_rows p
  JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %(slot)s AND p.expires_at > now()
   AND (p.reader = session_user || %(lease)s OR (%(of_all_roles)s AND right(p.reader, length(%(lease)s)) = %(lease)s))
 ORDER BY p.pin_id;

-- name: leased_feed
-- The unexpired pins of a lease on a feed, whichever process took them, oldest first.
SELECT pin_id, feed_id AS subject, snapshot_id, NULL::bigint AS cut
  FROM modak.feed_pin_rows
 WHERE feed_id = %(feed_id)s AND reader = session_user || %(lease)s::text AND expires_at > now()
 ORDER BY pin_id;

-- name: renew
-- Nothing that has expired: what it named may be gone.
UPDATE {relation} SET expires_at = greatest(expires_at, now() + make_interval(secs => %(seconds)s))
 WHERE pin_id = ANY (%(pins)s) AND expires_at > now();

-- name: release
DELETE FROM {relation} WHERE pin_id = ANY (%(pins)s);
