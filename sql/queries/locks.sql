-- Who holds locks that the mirror waits for (mirror_pump/source: catalog/lock_holders.py, stream/synchronous.py).

-- name: waits
-- Sessions that have waited for a while for a lock on a relation of schema modak or on a row of one, and those of a pump that wait
-- for one on any relation; and each session that they wait for: it holds the lock, or has asked for it before. Those of mirror-pump,
-- by a role that may publish, give their locks up by themselves. One that waits for a row waits for a transaction, and holds the lock
-- of the row's place meanwhile.
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks)
SELECT DISTINCT ON (b.pid, c.oid)
       b.pid, a.usename::text AS role, a.application_name AS application, a.query_start AS since, c.oid::regclass::text AS relation,
       coalesce(w.application_name, '') AS waiting, extract(epoch FROM clock_timestamp() - l.waitstart)::float8 AS seconds
  FROM locks l
  LEFT JOIN locks r ON l.locktype = 'transactionid' AND r.pid = l.pid AND r.locktype = 'tuple' AND r.granted
  JOIN pg_class c ON c.oid = coalesce(l.relation, r.relation)
  LEFT JOIN pg_stat_activity w ON w.pid = l.pid
 CROSS JOIN LATERAL unnest(pg_blocking_pids(l.pid)) AS b(pid)
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 WHERE (c.relnamespace = 'modak'::regnamespace OR w.application_name = 'mirror-pump') AND NOT l.granted AND l.waitstart < clock_timestamp() - make_interval(secs => %(seconds)s)
   AND coalesce(l.database, r.database) = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (a.application_name LIKE 'mirror-pump%%' AND has_table_privilege(a.usesysid, 'modak.mirror_slots', 'UPDATE')) IS NOT TRUE
 ORDER BY b.pid, c.oid, l.waitstart;

-- name: holders
-- Sessions that hold, or wait for, a lock on a relation of schema modak that no program of the mirror's takes on it for longer than a
-- publish. For who has just waited in vain.
SELECT DISTINCT ON (l.pid, c.oid)
       l.pid, a.usename::text AS role, a.application_name AS application, a.query_start AS since, c.oid::regclass::text AS relation,
       '' AS waiting, 0::float8 AS seconds
  FROM pg_locks l
  JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = 'modak'::regnamespace
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY l.pid, c.oid, l.granted DESC;

-- name: obstacles
-- Sessions with a lock of any mode on a relation of schema modak, whose transactions have lasted for a while, the oldest first: an
-- upgrade of the catalog waits for readers too.
SELECT coalesce(l.pid, 0) AS pid, a.usename::text AS role, a.application_name AS application, a.query_start AS since,
       min(c.oid::regclass::text) AS relation, '' AS waiting, 0::float8 AS seconds
  FROM pg_locks l
  JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = 'modak'::regnamespace AND c.relkind <> 'i'
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid() AND (a.xact_start > clock_timestamp() - interval '1 second') IS NOT TRUE
 GROUP BY l.pid, a.usename, a.application_name, a.query_start, a.xact_start
 ORDER BY a.xact_start, l.pid;

-- name: foreign_leads
-- Sessions that hold one of the advisory locks with these halves of their keys, although their role may not publish: PostgreSQL
-- lets any role take any advisory lock.
SELECT DISTINCT ON (l.pid)
       l.pid, a.usename::text AS role, a.application_name AS application, a.query_start AS since, '' AS relation,
       '' AS waiting, 0::float8 AS seconds
  FROM unnest(%(high)s::bigint[], %(low)s::bigint[]) AS k(high, low)
  JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.classid = k.high::oid AND l.objid = k.low::oid
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE NOT has_table_privilege(a.usesysid, 'modak.mirror_slots', 'UPDATE')
 ORDER BY l.pid;

-- name: synchronous
-- The standbys that commits wait for, and how many sessions wait for them now.
SELECT current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep');
