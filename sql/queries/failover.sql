-- Whether the mirror is prepared for a failover (mirror_pump/ops/doctor/failover.py).

-- name: physical
-- Physical slots, and standbys that stream without one.
SELECT slot_name::text AS slot, active, false AS without_slot FROM pg_replication_slots
 WHERE slot_type = 'physical' AND NOT temporary
 UNION ALL
SELECT coalesce(nullif(application_name, ''), client_addr::text), true, true FROM pg_stat_replication r
 WHERE r.state = 'streaming' AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid)
 ORDER BY 1;

-- name: waits_for
-- The physical slots for which the server holds back the stream; NULL before PostgreSQL 17.
SELECT current_setting('synchronized_standby_slots', true);
