-- The publication and the replication slot (mirror_pump/source/stream/slot.py).

-- name: settings
-- Whether it publishes all tables, and whether it publishes all changes of the tables that are added to it.
SELECT puballtables, pubviaroot AND pubinsert AND pubupdate AND pubdelete AND pubtruncate
  FROM pg_publication WHERE pubname = %(publication)s;

-- name: published_schemas
-- Whether it publishes whole schemas.
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

-- name: lock_lead
SELECT pg_try_advisory_lock(%(key)s);

-- name: note_drain
-- Where the slot may be taken to: %(room)s bytes ahead of this statement, and so behind its own commit.
UPDATE modak.mirror_slots SET drained_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint + %(room)s, leader = NULL
 WHERE slot_name = %(slot)s
RETURNING drained_lsn AS position, pg_current_xact_id()::text::bigint AS transaction;

-- name: drained
SELECT drained_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: fill_wal
-- WAL up to a position, by a message that belongs to no transaction: it has no commit. The prefix is the same for all mirrors.
SELECT pg_logical_emit_message(false, 'mirror-pump.drain', repeat(' ', greatest(0, %(position)s - (pg_current_wal_insert_lsn() - '0/0'))::int));

-- name: left_in_slot
-- Whether the slot has anything up to a position but messages that fill WAL: those have a type, flags and a position before
-- their prefix.
SELECT EXISTS (SELECT FROM pg_logical_slot_peek_binary_changes(%(slot)s, '0/0'::pg_lsn + %(position)s::numeric, NULL,
                               'proto_version', '1', 'publication_names', %(publication)s, 'messages', 'true')
                WHERE substring(data FROM 11 FOR 18) <> 'mirror-pump.drain\000'::bytea OR substring(data FOR 1) <> 'M'::bytea);

-- name: advance
SELECT pg_replication_slot_advance(%(slot)s, '0/0'::pg_lsn + %(position)s::numeric);

-- name: quiet_since
-- Whether no transaction has begun to write since the given one, nor was under way when that one committed.
SELECT pg_snapshot_xmax(snapshot)::text::bigint = %(transaction)s + 1
       AND pg_snapshot_xmin(snapshot) = pg_snapshot_xmax(snapshot)
  FROM pg_current_snapshot() snapshot;
