-- The leader, and its last error (mirror_pump/source: leader.py, standby.py, pump_error.py).

-- name: note_error
-- `since` stays while the pump keeps failing, also across restarts. Does nothing if another pump leads by now.
UPDATE modak.mirror_slots
   SET last_error = jsonb_build_object(
           'at', clock_timestamp(),
           'since', coalesce(CASE WHEN last_error ->> 'retry_in' IS NOT NULL
                                  THEN (last_error ->> 'since')::timestamptz END,
                             clock_timestamp() - make_interval(secs => %(failing_for)s))) || %(details)s
 WHERE slot_name = %(slot)s AND leader_epoch = %(epoch)s;

-- name: holders
-- Who holds the advisory lock with these halves of its key, which is how pg_locks shows a bigint key. A session that is
-- just ending may be there without its pg_stat_activity. One whose role may not publish is no pump (lock_holders.py).
SELECT coalesce(a.application_name, ''), a.backend_start
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.classid = %(high)s::bigint::oid AND l.objid = %(low)s::bigint::oid
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND has_table_privilege(a.usesysid, 'modak.mirror_slots', 'UPDATE') IS NOT FALSE
 ORDER BY a.backend_start, l.pid;

-- name: ask
-- Whether the lock is ours now, and the last sign of life of the session that holds it.
SELECT pg_try_advisory_lock(%(key)s) AS locked, leader, leader_epoch, applied_lsn,
       (SELECT max(a.state_change)
          FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
           AND l.classid = %(high)s::bigint::oid AND l.objid = %(low)s::bigint::oid
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS alive_at
  FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: depose
-- Ends the sessions of a leader: the one with its lock, its walsender, and a publish that holds the slot's row.
SELECT kind, pg_terminate_backend(pid)
  FROM (SELECT 'lead' AS kind, l.pid FROM pg_locks l
         WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
           AND l.classid = %(high)s::bigint::oid AND l.objid = %(low)s::bigint::oid
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
         UNION ALL
        SELECT 'slot', active_pid FROM pg_replication_slots WHERE slot_name = %(slot)s AND active_pid IS NOT NULL
         UNION ALL
        SELECT DISTINCT 'publish', l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.relation = 'modak.mirror_slots'::regclass AND l.granted AND l.pid <> pg_backend_pid()
           AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND a.application_name = 'mirror-pump') session;

-- name: failing_threads
-- Does not wait for a publish, which holds the row: a sign of life is due.
UPDATE modak.mirror_slots SET leader = leader || %(failing)s::jsonb
 WHERE slot_name IN (SELECT slot_name FROM modak.mirror_slots
                      WHERE slot_name = %(slot)s AND leader_epoch = %(epoch)s FOR UPDATE SKIP LOCKED);

-- name: enter
-- Begins the epoch of a new leader, which already holds the lock.
UPDATE modak.mirror_slots SET leader_epoch = leader_epoch + 1, leader = %s WHERE slot_name = %s
RETURNING leader_epoch;
