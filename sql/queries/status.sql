-- How the mirror is (mirror_pump/ops: status.py, slot_state.py, retention_state.py, wait.py).

-- name: mirror
-- One statement, so that the frontier and the WAL position belong to one moment. What the pump reports as applied to its
-- walsender counts as reached: a pump with nothing in hand reports how far it has read, and publishes the frontier only now
-- and then (docs/architecture.md). What the slot has confirmed does not: somebody else may have moved it. The written
-- position, not the insert position: that one is past the header of a page on which nothing stands yet, and an idle lag
-- would not be 0.
SELECT (pg_current_wal_lsn() - '0/0')::bigint, clock_timestamp(), current_database(),
       s.applied_lsn, s.applied_commit_time, s.leader, s.leader_epoch, s.last_error,
       (p.replay_lsn - '0/0')::bigint, p.reply_time
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
  LEFT JOIN pg_stat_replication p ON p.pid = r.active_pid
 WHERE s.slot_name = %s;

-- name: tables
SELECT m.table_id, t.schema_name, t.table_name, m.lake_table, m.state,
       c.replicated_lsn, c.lake_snapshot_id, m.error, i.metadata_location,
       p.total, p.done, p.rows, m.key_index, modak.mirror_left_out(m.shape),
       h.shape IS NULL OR modak.mirror_has_key(h.shape)
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.mirror_shapes h USING (table_id)
  LEFT JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 CROSS JOIN LATERAL (
       SELECT count(*) AS total, count(k.done_at) AS done,
              coalesce(sum(k.rows) FILTER (WHERE k.done_at IS NOT NULL), 0)::bigint AS rows
         FROM modak.copy_chunks k WHERE k.table_id = m.table_id AND k.generation = m.generation) p
 WHERE m.slot_name = %s
 ORDER BY t.schema_name, t.table_name;

-- name: slot
-- Columns that not every version has are looked up by name in the row as a whole.
SELECT s.system_identifier, s.timeline, s.database_name, s.applied_lsn, s.applied_at, s.applied_commit_time,
       r.slot_name IS NOT NULL, coalesce(r.active, false), r.wal_status,
       (pg_current_wal_lsn() - r.restart_lsn)::bigint, (r.confirmed_flush_lsn - '0/0')::bigint,
       to_jsonb(r) ->> 'invalidation_reason', (to_jsonb(r) ->> 'inactive_since')::timestamptz, r.safe_wal_size
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
 WHERE s.slot_name = %s;

-- name: holder
-- A slot keeps the WAL from the beginning of the oldest transaction that is still open, however far the frontier is. One
-- that began before the newest published commit is worth a word; other roles' transactions are for pg_read_all_stats to
-- see.
SELECT kind, pid, application, prepared, extract(epoch FROM clock_timestamp() - since)::float8
  FROM (SELECT 'transaction' AS kind, pid, application_name AS application, NULL AS prepared, xact_start AS since
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         UNION ALL
        SELECT 'prepared transaction', NULL, NULL, gid, prepared FROM pg_prepared_xacts) open
 WHERE since < %s ORDER BY since LIMIT 1;

-- name: retention
SELECT s.table_id, t.tier_key_type, s.cutline_t, s.heap_retention_lag, s.retention_line,
       coalesce(s.partition_states, '{}'),
       s.retention_stopped, m.retention ->> 'not_made',
       (SELECT p.reason FROM modak.partitions p
         WHERE p.table_id = s.table_id AND p.state <> 'dropped' AND p.reason IS NOT NULL
         ORDER BY p.tier_key_hi LIMIT 1),
       s.delta_backlog, s.delta_unfolded, extract(epoch FROM now() - s.delta_since)::float8,
       s.read_pins - s.expired_pins, s.expired_pins, extract(epoch FROM now() - s.oldest_pin)::float8
  FROM modak.status s JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %s AND (m.retention IS NOT NULL OR s.read_pins > 0);

-- name: frontier
SELECT s.applied_lsn,
       (SELECT min(c.replicated_lsn)
          FROM modak.mirror_tables m JOIN modak.cutline c USING (table_id)
         WHERE m.slot_name = s.slot_name AND m.state = 'live'),
       (SELECT r.active FROM pg_replication_slots r WHERE r.slot_name = s.slot_name), s.last_error, clock_timestamp()
  FROM modak.mirror_slots s WHERE s.slot_name = %s;
