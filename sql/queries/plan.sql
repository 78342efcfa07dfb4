-- What a mirror would do to a server (mirror_pump/ops/plan/). PostgreSQL's own catalogs and statistics alone, and no function that
-- locks a table: a role without any right can run all of it, before anything is set up.

-- name: settings
SELECT current_setting('server_version') AS version, current_database()::text AS database,
       (SELECT setting::bigint * 1024 FROM pg_settings WHERE name = 'logical_decoding_work_mem') AS decoding_bytes,
       current_setting('max_connections')::int AS connections,
       (SELECT sum(numbackends) FROM pg_stat_database)::int AS used_connections,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_sessions,
       ARRAY(SELECT name FROM pg_settings
              WHERE pending_restart AND name IN ('wal_level', 'max_replication_slots', 'max_wal_senders') ORDER BY 1) AS pending;

-- name: counters
-- What is counted at one moment. `transactions`: those that have written something. `catalog_changes`: rows of system catalogs that
-- were updated or deleted, by DDL and by temporary tables.
SELECT clock_timestamp() AS at,
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0')::bigint
           AS wal_position,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS transactions, (d.tup_inserted + d.tup_updated + d.tup_deleted)::bigint AS changes,
       (SELECT coalesce(sum(pg_stat_get_tuples_updated(c.oid) + pg_stat_get_tuples_deleted(c.oid)), 0)::bigint
          FROM pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind = 'r') AS catalog_changes,
       coalesce(d.stats_reset, pg_postmaster_start_time()) AS since
  FROM pg_stat_database d WHERE d.datname = current_database();

-- name: tables
-- Of each table what its heaps are together: itself, or its leaf partitions. Sizes are those of the last VACUUM or ANALYZE, which
-- `unmeasured` heaps never had. `default_rows`: of the DEFAULT partition.
WITH RECURSIVE tree(root, relation) AS (
    SELECT r.oid, r.oid FROM unnest(%(oids)s::bigint[]::oid[]) AS r(oid)
     UNION ALL
    SELECT t.root, i.inhrelid FROM tree t
      JOIN pg_inherits i ON i.inhparent = t.relation AND NOT i.inhdetachpending
      JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT t.root::bigint AS table_id, count(*)::int AS heaps, (count(*) FILTER (WHERE c.reltuples < 0))::int AS unmeasured,
       coalesce(sum((greatest(c.relpages, 0)::bigint + coalesce(greatest(toast.relpages, 0), 0)) * current_setting('block_size')::bigint), 0)::bigint
           AS size_bytes,
       sum(CASE WHEN c.reltuples < 0 THEN pg_stat_get_live_tuples(c.oid) ELSE c.reltuples::bigint END)::bigint AS rows,
       bool_or(c.relrowsecurity) AS row_security,
       coalesce(sum(CASE WHEN c.reltuples < 0 THEN pg_stat_get_live_tuples(c.oid) ELSE c.reltuples::bigint END)
                  FILTER (WHERE c.oid = k.partdefid), 0)::bigint AS default_rows,
       coalesce(sum(pg_stat_get_tuples_inserted(c.oid)), 0)::bigint AS inserted,
       coalesce(sum(pg_stat_get_tuples_updated(c.oid)), 0)::bigint AS updated,
       coalesce(sum(pg_stat_get_tuples_deleted(c.oid)), 0)::bigint AS deleted
  FROM tree t
  JOIN pg_class c ON c.oid = t.relation AND c.relkind <> 'p'
  LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
  LEFT JOIN pg_partitioned_table k ON k.partrelid = t.root
 GROUP BY t.root;

-- name: transactions
-- Those that have written something: the creation of a slot waits for the end of all of them, in every database. Of other roles'
-- sessions a role without pg_read_all_stats does not see how long they last.
SELECT a.pid, a.datname::text AS database, a.usename::text AS role, coalesce(a.application_name, '') AS application,
       '' AS prepared_as, a.backend_xid::text AS transaction_id,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
  FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
 UNION ALL
SELECT 0, p.database::text, p.owner::text, '', p.gid, p.transaction::text,
       extract(epoch FROM clock_timestamp() - p.prepared)::float8
  FROM pg_prepared_xacts p;

-- name: slots
SELECT s.slot_name::text AS slot, s.slot_type AS kind, s.active, s.wal_status,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - s.restart_lsn)::bigint END AS retained_bytes,
       age(s.xmin)::bigint AS xmin_age, age(s.catalog_xmin)::bigint AS catalog_xmin_age,
       coalesce(t.spill_txns, 0)::bigint AS spilled_transactions, coalesce(t.spill_bytes, 0)::bigint AS spilled_bytes
  FROM pg_replication_slots s LEFT JOIN pg_stat_replication_slots t USING (slot_name)
 ORDER BY 1;
