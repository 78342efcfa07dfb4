-- The publication and the replication slot (mirror_pump/source/stream/slot.py).

-- name: settings
-- Whether it publishes all tables, and whether it publishes all changes of the tables that are added to it.
SELECT puballtables, pubviaroot AND pubinsert AND pubupdate AND pubdelete AND pubtruncate
  FROM pg_publication WHERE pubname = %(publication)s;

-- name: published_schemas
-- Whether it publishes whole schemas, which publications can do since PostgreSQL 15.
SELECT FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
 WHERE p.pubname = %(publication)s LIMIT 1;

-- name: has_table
SELECT EXISTS (SELECT FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
                 JOIN pg_publication_rel r ON r.prrelid = c.oid JOIN pg_publication p ON p.oid = r.prpubid
                WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND p.pubname = %(publication)s);

-- name: slot
-- Columns that some versions lack are looked up by name in the whole row. PostgreSQL 16 says only that a slot is invalid, not
-- why. A standby server has no current position, so the position that it has received is used.
SELECT s.slot_name AS name, s.plugin, s.database, s.temporary, s.two_phase, s.active_pid,
       (s.restart_lsn - '0/0')::bigint AS restart_lsn, (s.confirmed_flush_lsn - '0/0')::bigint AS confirmed_flush_lsn,
       s.wal_status, s.safe_wal_size AS safe_wal_bytes,
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END
        - s.restart_lsn)::bigint AS retained_bytes,
       CASE WHEN current_setting('server_version_num')::int >= 170000 THEN to_jsonb(s) ->> 'invalidation_reason'
            WHEN (to_jsonb(s) ->> 'conflicting')::boolean THEN 'conflict' END AS invalidation_reason,
       (to_jsonb(s) ->> 'failover')::boolean AS failover, (to_jsonb(s) ->> 'inactive_since')::timestamptz AS inactive_since
  FROM pg_replication_slots s WHERE s.slot_name = %(slot)s;

-- name: wal_room
-- An online checkpoint records the position and the time at which it began. All times are by the server's clock.
SELECT clock_timestamp() AS at, (pg_current_wal_lsn() - '0/0')::bigint AS wal_position,
       s.safe_wal_size AS safe_wal_bytes, (pg_current_wal_lsn() - s.restart_lsn)::bigint AS retained_bytes,
       (pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint AS unconfirmed_bytes, s.active_pid,
       (c.redo_lsn - '0/0')::bigint AS checkpoint_position, c.checkpoint_time AS checkpoint_at
  FROM pg_replication_slots s CROSS JOIN pg_control_checkpoint() c
 WHERE s.slot_name = %(slot)s;

-- name: identity
-- The database, its cluster, and the current WAL file, which a standby server does not have.
SELECT (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier, current_database() AS database,
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_lsn()) END AS wal_file,
       (SELECT timeline_id FROM pg_control_checkpoint()) AS checkpoint_timeline;

-- name: end_stream
-- Ends the walsender of another pump.
SELECT pg_terminate_backend(a.pid)
  FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.slot_name = %(slot)s AND a.application_name = %(application)s;

-- name: recorded
-- What the catalog has of the slot (mirror_pump/source/catalog/catalog_slot.py).
SELECT publication_name, system_identifier, timeline, database_name, applied_lsn, applied_at, streams
  FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: format_version
SELECT format_version FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: set_format_version
UPDATE modak.mirror_slots SET format_version = %(version)s WHERE slot_name = %(slot)s AND format_version <> %(version)s;
