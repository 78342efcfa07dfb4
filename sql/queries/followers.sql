-- Followers: other catalogs that show the mirrored tables (mirror_pump/source/catalog/followers.py).

-- name: followers
-- All of a mirror, or the one of this name. Before a pump streams, it has found that the server is the mirror's, and no copy
-- or restored state of it, which would take followers back.
SELECT f.slot_name AS slot, f.name, f.follower_id::text AS follower_id, f.kind, f.options, f.credential_ref, f.namespace_pattern,
       f.table_pattern, f.frontier, f.reached_at, f.examined_at, f.moves_together, f.error, f.behind_since,
       f.removed_at IS NOT NULL AS ends, s.applied_lsn AS published, s.applied_at AS published_at, clock_timestamp() AS read_at, t.tables, t.refused,
       coalesce(r.active, NOT s.streams AND s.went_back_at IS NULL) AS may_move
  FROM modak.followers f
  JOIN modak.mirror_slots s USING (slot_name)
  LEFT JOIN pg_replication_slots r USING (slot_name)
 CROSS JOIN LATERAL (SELECT count(t.snapshot_id) AS tables, count(t.error) AS refused
                       FROM modak.follower_tables t WHERE t.slot_name = f.slot_name AND t.follower = f.name) t
 WHERE f.slot_name = %(slot)s AND (%(name)s::text IS NULL OR f.name = %(name)s)
 ORDER BY f.name;

-- name: add
INSERT INTO modak.followers (slot_name, name, kind, options, credential_ref, namespace_pattern, table_pattern)
VALUES (%(slot)s, %(name)s, %(kind)s, %(options)s, %(credential_ref)s, %(namespace_pattern)s, %(table_pattern)s);

-- name: end
-- From now on no pump registers anything there.
UPDATE modak.followers SET removed_at = coalesce(removed_at, clock_timestamp()) WHERE follower_id = %(follower_id)s;

-- name: delete
DELETE FROM modak.followers WHERE follower_id = %(follower_id)s;

-- name: stays
-- No row once it is being removed. If there is one, that waits for the end of the transaction.
SELECT 1 FROM modak.followers WHERE follower_id = %(follower_id)s AND removed_at IS NULL FOR SHARE;

-- name: lock
SELECT pg_try_advisory_lock(%(key)s);

-- name: tables
SELECT table_id, start_lsn, namespace, name, table_uuid, directory, snapshot_id, next_snapshot_id, published_location,
       metadata_location, error
  FROM modak.follower_tables
 WHERE slot_name = %(slot)s AND follower = %(name)s
 ORDER BY table_id, start_lsn;

-- name: store_table
INSERT INTO modak.follower_tables AS t (slot_name, follower, table_id, start_lsn, namespace, name, table_uuid, directory,
                                        snapshot_id, next_snapshot_id, published_location, metadata_location, error)
VALUES (%(slot)s, %(follower)s, %(table_id)s, %(start_lsn)s, %(namespace)s, %(name)s, %(table_uuid)s, %(directory)s,
        %(snapshot_id)s, %(next_snapshot_id)s, %(published_location)s, %(metadata_location)s, %(error)s)
ON CONFLICT (slot_name, follower, table_id, start_lsn) DO UPDATE
   SET namespace = excluded.namespace, name = excluded.name, table_uuid = excluded.table_uuid, directory = excluded.directory,
       snapshot_id = excluded.snapshot_id, next_snapshot_id = excluded.next_snapshot_id,
       published_location = excluded.published_location, metadata_location = excluded.metadata_location, error = excluded.error;

-- name: delete_table
DELETE FROM modak.follower_tables t
 USING modak.followers f
 WHERE f.follower_id = %(follower_id)s AND (t.slot_name, t.follower) = (f.slot_name, f.name) AND t.table_id = %(table_id)s
   AND t.start_lsn = %(start_lsn)s;

-- name: begun
-- A round that has something to do.
UPDATE modak.followers SET behind_since = clock_timestamp()
 WHERE follower_id = %(follower_id)s AND behind_since IS NULL;

-- name: reached
UPDATE modak.followers
   SET frontier = coalesce(%(frontier)s::bigint, frontier), error = NULL,
       reached_at = CASE WHEN %(frontier)s::bigint IS NULL THEN reached_at ELSE clock_timestamp() END,
       behind_since = CASE WHEN %(frontier)s::bigint IS NULL THEN behind_since END,
       moves_together = %(moves_together)s,
       examined_at = CASE WHEN %(examined)s THEN clock_timestamp() ELSE examined_at END
 WHERE follower_id = %(follower_id)s;

-- name: failed
UPDATE modak.followers
   SET error = %(error)s, behind_since = coalesce(behind_since, clock_timestamp())
 WHERE follower_id = %(follower_id)s;
