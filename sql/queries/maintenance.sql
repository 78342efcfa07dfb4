-- What maintenance reads and writes in the catalog (mirror_pump/source/catalog/maintenance.py).

-- name: tables
SELECT m.table_id, t.schema_name, t.table_name, m.lake_table, m.location, m.state, m.start_lsn,
       t.maintenance_policy AS policy, i.metadata_location, i.previous_metadata_location,
       c.lake_snapshot_id AS published_snapshot, coalesce(c.lake_props ->> 'metadata_location', '') AS published_location,
       coalesce((SELECT array_agg(DISTINCT p.pinned_lake_snapshot_id)
                   FROM modak.read_pin_rows p
                  WHERE p.table_id = m.table_id AND p.expires_at > now()), '{}') AS pinned,
       ARRAY(SELECT unnest(ARRAY[k.snapshot_id, k.main_snapshot_id])
               FROM modak.moment_tables k WHERE k.table_id = m.table_id) AS kept_snapshots,
       ARRAY(SELECT unnest(ARRAY[k.metadata_location, k.main_location])
               FROM modak.moment_tables k WHERE k.table_id = m.table_id
              UNION ALL
             SELECT f.metadata_location FROM modak.follower_tables f
              WHERE f.table_id = m.table_id AND f.metadata_location IS NOT NULL) AS kept_files,
       ARRAY(SELECT k.name FROM modak.moment_tables k WHERE k.table_id = m.table_id ORDER BY 1) AS moments,
       EXISTS (SELECT FROM modak.copy_progress g WHERE g.table_id = m.table_id) AS copy_planned,
       ARRAY(SELECT f ->> 'path' FROM modak.partition_chunks k, jsonb_array_elements(k.files) f
              WHERE k.table_id = m.table_id) AS copied_files
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.cutline c USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND (%(table_ids)s::bigint[] IS NULL OR m.table_id = ANY (%(table_ids)s))
 ORDER BY m.table_id;

-- name: policy
SELECT maintenance_policy FROM modak.tables WHERE table_id = %(table_id)s FOR UPDATE;

-- name: store_policy
UPDATE modak.tables SET maintenance_policy = %(policy)s WHERE table_id = %(table_id)s;

-- name: request
-- One request per table. A repeated request refreshes it.
INSERT INTO modak.maintenance_requests (table_id, requested_by) VALUES (%(table_id)s, %(by)s)
ON CONFLICT (table_id) DO UPDATE SET requested_at = now(), requested_by = excluded.requested_by;

-- name: requested
-- Includes requests claimed by a maintainer without a recent heartbeat: the next one to lock the table files them again.
SELECT r.table_id
  FROM (SELECT table_id, requested_at FROM modak.maintenance_requests
         UNION ALL
        SELECT table_id, updated_at FROM modak.op_log
         WHERE phase = 'running' AND op_kind = 'maintenance' AND updated_at < now() - interval '60 s'
           AND details ->> 'operation' = 'pass' AND details ->> 'requested_by' IS NOT NULL) r
  JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %(slot)s
 GROUP BY r.table_id ORDER BY min(r.requested_at);

-- name: claim
DELETE FROM modak.maintenance_requests WHERE table_id = %(table_id)s RETURNING requested_by;

-- name: withdraw
-- Withdraws requests for which the requester no longer waits. A request that another requester has refreshed belongs to that
-- one.
DELETE FROM modak.maintenance_requests WHERE table_id = ANY (%(table_ids)s) AND requested_by = %(by)s;

-- name: begin
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, lake_snapshot_id, details)
VALUES (%(op_id)s, %(table_id)s, %(kind)s, %(phase)s, NULL,
        %(details)s::jsonb || jsonb_build_object('began_at', clock_timestamp()));

-- name: beat
UPDATE modak.op_log SET updated_at = now() WHERE op_id = ANY (%(op_ids)s);

-- name: finish
UPDATE modak.op_log
   SET phase = %(phase)s, details = details || %(details)s, updated_at = now(),
       lake_snapshot_id = coalesce(%(snapshot_id)s, lake_snapshot_id)
 WHERE op_id = %(op_id)s;

-- name: abandon
-- The caller holds the table's lock, so operations that have not ended belong to a dead process.
UPDATE modak.op_log SET phase = 'abandoned', updated_at = now()
 WHERE table_id = %(table_id)s AND op_kind IN ('compaction', 'maintenance') AND phase IN ('running', 'rewriting')
RETURNING details ->> 'operation', details ->> 'requested_by';

-- name: prune
DELETE FROM modak.op_log
 WHERE table_id = %(table_id)s AND op_kind IN ('compaction', 'maintenance') AND updated_at < now() - interval '30 days'
   AND phase IN ('done', 'failed', 'abandoned');

-- name: last
-- The newest operation of a kind that ended, with its outcome.
SELECT phase, details, extract(epoch FROM now() - updated_at)::float8 AS age
  FROM modak.op_log
 WHERE table_id = %(table_id)s AND details ->> 'operation' = %(operation)s AND phase IN ('done', 'failed')
 ORDER BY updated_at DESC LIMIT 1;

-- name: result
-- The outcome of the pass that answered a request: the first that began after it was filed. Ignores abandoned passes, whose
-- requests are filed again.
SELECT phase, details FROM modak.op_log
 WHERE table_id = %(table_id)s AND details ->> 'operation' = 'pass' AND phase IN ('done', 'failed')
   AND (details ->> 'began_at')::timestamptz >= %(since)s
 ORDER BY updated_at LIMIT 1;

-- name: store_stats
INSERT INTO modak.lake_stats (table_id, stats, warnings, policy)
VALUES (%(table_id)s, %(stats)s, %(warnings)s, %(policy)s)
ON CONFLICT (table_id) DO UPDATE
   SET stats = excluded.stats, warnings = excluded.warnings, policy = excluded.policy, collected_at = now();

-- name: begin_sweep
-- Runs under the slot's lock: earlier publishes have landed, and later ones compare their files' age with this time. Not after
-- the present: no publish would land until then.
UPDATE modak.mirror_tables
   SET swept_before = greatest(swept_before, least(to_timestamp(%(before)s), clock_timestamp()))
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND state NOT IN ('waiting', 'copying', 'filling');

-- name: begin_feed_sweep
-- The same for the files of change feeds, which publishes bring, and merges of the pump.
WITH declared AS (
    UPDATE modak.change_feeds
       SET swept_before = greatest(swept_before, least(to_timestamp(%(before)s), clock_timestamp()))
     WHERE slot_name = %(slot)s)
UPDATE modak.mirror_tables m
   SET swept_before = greatest(m.swept_before, least(to_timestamp(%(before)s), clock_timestamp()))
  FROM modak.change_feeds f
 WHERE f.feed_id = m.table_id AND f.slot_name = %(slot)s AND m.state NOT IN ('waiting', 'copying', 'filling');

-- name: follows
-- Whether the mirror continues on this server: the slot is there and not ahead of the catalog, and cluster and timeline are those
-- that it was published on. Otherwise the database, or schema modak, may have been restored, and the catalog does not know all files.
-- Without a stream there is no slot, and the pump notes that the database went back.
SELECT s.timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int
       AND s.system_identifier = (SELECT c.system_identifier::text FROM pg_control_system() c)
       AND CASE WHEN s.streams THEN EXISTS (SELECT FROM pg_replication_slots r WHERE r.slot_name = s.slot_name
                                               AND (r.confirmed_flush_lsn <= '0/0'::pg_lsn + s.applied_lsn
                                                    OR r.confirmed_flush_lsn = '0/0'::pg_lsn + s.drained_lsn))
                ELSE s.went_back_at IS NULL END
  FROM modak.mirror_slots s WHERE s.slot_name = %(slot)s;

-- name: served
-- Whether a session holds the advisory lock with these halves of its key, which is how pg_locks shows a bigint key.
SELECT EXISTS (SELECT FROM pg_locks
                WHERE locktype = 'advisory' AND granted AND objsubid = 1
                  AND classid = %(high)s::bigint::oid AND objid = %(low)s::bigint::oid
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: attention
-- The state of each table's maintenance: the statistics of its last examination, for how long it has had commits that no
-- maintainer examined, and the outcome of the last sweep and the last pass. A table that is being copied, or whose policy
-- disables maintenance, does not count as unattended.
SELECT m.table_id, t.schema_name, t.table_name, s.stats, s.collected_at,
       CASE WHEN i.metadata_location IS DISTINCT FROM s.stats ->> 'metadata_location'
             AND t.maintenance_policy ->> 'maintenance_enabled' IS DISTINCT FROM 'false' AND m.state NOT IN ('waiting', 'copying')
            THEN extract(epoch FROM clock_timestamp() - greatest(t.created_at, s.collected_at))::float8
            END AS unattended_seconds,
       sweep.sequence AS swept_at_sequence, pass.phase AS last_phase, pass.errors AS last_errors
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
  LEFT JOIN modak.lake_stats s USING (table_id)
  LEFT JOIN LATERAL (
       SELECT (o.details ->> 'sequence_number')::bigint AS sequence FROM modak.op_log o
        WHERE o.table_id = m.table_id AND o.op_kind = 'maintenance' AND o.phase IN ('done', 'failed')
          AND o.details ->> 'operation' = 'remove_orphan_files'
        ORDER BY o.updated_at DESC LIMIT 1) sweep ON true
  LEFT JOIN LATERAL (
       SELECT o.phase, coalesce(o.details -> 'errors', jsonb_build_array(o.details ->> 'error')) AS errors
         FROM modak.op_log o
        WHERE o.table_id = m.table_id AND o.op_kind = 'maintenance' AND o.phase IN ('done', 'failed')
          AND o.details ->> 'operation' = 'pass'
        ORDER BY o.updated_at DESC LIMIT 1) pass ON true
 WHERE m.slot_name = %(slot)s
 ORDER BY t.schema_name, t.table_name;
