-- Facts about the source server (mirror_pump/source/server.py).

-- name: facts
-- Settings that some versions lack are looked up in pg_settings.
SELECT current_user::text AS role, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       current_setting('wal_level') AS wal_level,
       (SELECT setting FROM pg_settings WHERE name = 'effective_wal_level') AS effective_wal_level,
       (SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries') AS output_plugins,
       current_setting('max_replication_slots')::int AS slots,
       (SELECT count(*) FROM pg_replication_slots)::int AS used_slots,
       current_setting('max_wal_senders')::int AS senders,
       (SELECT count(*) FROM pg_stat_replication)::int AS used_senders,
       pg_is_in_recovery() AS in_recovery,
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
       OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'MEMBER')) AS may_replicate,
       ARRAY(SELECT sign FROM unnest(%(signs)s::text[]) AS sign
              WHERE EXISTS (SELECT FROM pg_roles WHERE rolname = sign) OR current_setting(sign, true) IS NOT NULL
                 OR EXISTS (SELECT FROM pg_proc WHERE proname = sign AND pronamespace = 'pg_catalog'::regnamespace)) AS signs,
       has_database_privilege(current_database(), 'CREATE') AS may_create,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_mb,
       coalesce((SELECT setting::bigint FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0) AS idle_timeout,
       to_regnamespace('modak') IS NOT NULL AS schema_exists, current_setting('server_encoding') AS encoding;

-- name: clock
SELECT clock_timestamp();

-- name: process
SELECT pg_backend_pid();
