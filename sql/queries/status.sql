-- The state of the mirror (mirror_pump/ops/status).

-- name: mirror
-- One statement, so that the frontier and the WAL position are of the same moment. The position that the pump reports to its
-- walsender as applied counts as reached: an idle pump reports how far it has read, and publishes the frontier only
-- occasionally (docs/architecture.md). The slot's confirmed position does not count, since another session may have moved it. The end of
-- WAL is the written position: the insert position may be behind the header of an empty page, so that an idle mirror would
-- seem to lag.
SELECT (pg_current_wal_lsn() - '0/0')::bigint AS wal_position, clock_timestamp() AS at, current_database() AS database,
       s.applied_lsn AS frontier, s.applied_commit_time AS commit_time, s.leader, s.leader_epoch, s.last_error,
       s.streams, s.went_back_at,
       (p.replay_lsn - '0/0')::bigint AS reached
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
  LEFT JOIN pg_stat_replication p ON p.pid = r.active_pid
 WHERE s.slot_name = %s;

-- name: tables
SELECT m.table_id, t.schema_name, t.table_name, m.lake_table, m.state, t.mode,
       c.replicated_lsn AS frontier, c.lake_snapshot_id AS snapshot_id, m.error, i.metadata_location, (m.lake_head ->> 'snapshot_id')::bigint AS head_snapshot_id,
       p.chunks_total, p.chunks_done, p.rows_copied, m.key_index, modak.mirror_left_out(m.shape) AS left_out,
       ARRAY(SELECT e ->> 'name' FROM jsonb_array_elements(m.excluded) AS e ORDER BY (e ->> 'attnum')::int) AS excluded,
       ARRAY(SELECT e ->> 'name' FROM jsonb_array_elements(m.columns) AS e WHERE e ->> 'type' LIKE 'string masked%%') AS masked,
       m.row_filter, ARRAY(SELECT a.attname::text FROM jsonb_array_elements(m.columns) AS e
                              JOIN pg_attribute a ON a.attrelid = m.table_id::oid AND a.attnum = (e ->> 'attnum')::int
                             WHERE m.column_list AND NOT a.attisdropped) AS listed,
       h.shape IS NULL OR m.key = '{}' OR modak.mirror_has_key(h.shape) AS has_key, m.paused_at AS paused_since, t.partition_scheme,
       CASE WHEN t.partition_scheme <> '{}' THEN (SELECT jsonb_object_agg(e ->> 'field_id', e ->> 'name') FROM jsonb_array_elements(m.columns) AS e)
            ELSE '{}' END AS field_names, m.snapshot_only, m.snapshot_every,
       m.state = 'copying' AND m.resync_since IS NOT NULL AND m.live_after_lsn IS NOT NULL AS waits_for_others,
       ARRAY(SELECT d.location FROM modak.mirror_damaged_files d WHERE d.table_id = m.table_id ORDER BY d.location) AS damaged,
       modak.moved_cut(m.table_id) IS NOT NULL AS sheds
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.mirror_shapes h USING (table_id)
  LEFT JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 CROSS JOIN LATERAL (
       SELECT count(*) AS chunks_total, count(k.done_at) AS chunks_done,
              coalesce(sum(k.rows) FILTER (WHERE k.done_at IS NOT NULL), 0)::bigint AS rows_copied
         FROM modak.copy_chunks k WHERE k.table_id = m.table_id AND k.generation = m.generation) p
 WHERE m.slot_name = %s
 ORDER BY t.schema_name, t.table_name;

-- name: slot
-- Columns that some versions lack are looked up by name in the whole row.
SELECT s.timeline, s.applied_lsn AS applied, s.applied_at,
       s.applied_commit_time AS commit_time, s.streams, r.slot_name IS NOT NULL AS exists, coalesce(r.active, false) AS active,
       r.wal_status, (r.confirmed_flush_lsn - '0/0')::bigint AS confirmed,
       to_jsonb(r) ->> 'invalidation_reason' AS invalidation_reason,
       (to_jsonb(r) ->> 'inactive_since')::timestamptz AS inactive_since
  FROM modak.mirror_slots s LEFT JOIN pg_replication_slots r ON r.slot_name = s.slot_name
 WHERE s.slot_name = %s;

-- name: holder
-- A slot keeps WAL from the beginning of the oldest open transaction, wherever the frontier is. So `status` reports
-- transactions that began before the newest published commit. Those of other roles are visible to pg_read_all_stats only.
SELECT kind, pid, application, prepared, extract(epoch FROM clock_timestamp() - since)::float8 AS seconds
  FROM (SELECT 'transaction' AS kind, pid, application_name AS application, NULL AS prepared, xact_start AS since
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         UNION ALL
        SELECT 'prepared transaction', NULL, NULL, gid, prepared FROM pg_prepared_xacts) open
 WHERE since < %(before)s ORDER BY since LIMIT 1;

-- name: retention
SELECT s.table_id, t.mode, t.keep_heap, t.tier_key_type, s.cutline_t AS cut,
       modak.lag_of(t.mode, t.heap_retention_lag, m.retention) AS lag, s.retention_line,
       coalesce(s.partition_states, '{}') AS partitions,
       s.retention_stopped AS stopped, coalesce(m.retention ->> 'not_seen', m.retention ->> 'not_made') AS not_made,
       (SELECT w.reason FROM modak.partitions p CROSS JOIN LATERAL modak.present_reason(p.reason) AS w(reason)
         WHERE p.table_id = s.table_id AND p.state <> 'dropped' AND w.reason IS NOT NULL
         ORDER BY p.tier_key_hi LIMIT 1) AS waits_for,
       s.delta_backlog AS delta_rows, s.delta_unfolded, extract(epoch FROM now() - s.delta_since)::float8 AS delta_age,
       s.read_pins - s.expired_pins - s.lake_pins AS pins, s.expired_pins, s.lake_pins,
       (SELECT extract(epoch FROM now() - min(r.started_at))::float8 FROM modak.read_pin_rows r
         WHERE r.table_id = s.table_id AND r.expires_at > now() AND r.pinned_tier_key_hi < 9223372036854775807) AS oldest_pin_age,
       k.chunks_total, k.chunks_done, m.retention IS NOT NULL AS has_cutline,
       t.lake_retention_lag AS lake_lag, modak.present_reason(m.retention ->> 'not_expired') AS not_expired
  FROM modak.status s JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id)
 CROSS JOIN LATERAL (SELECT count(*) AS chunks_total, count(k.done_at) AS chunks_done FROM modak.partition_chunks k
                      WHERE k.table_id = s.table_id) k
 WHERE m.slot_name = %s AND (m.retention IS NOT NULL OR s.read_pins > 0);

-- name: resyncs
-- Tables that are copied again together. A paused one waits for nothing but its resume. The share that is copied goes by the heap's size as of the last VACUUM or ANALYZE:
-- to ask for the present one takes a lock.
WITH copied AS (
    SELECT m.resync_since, m.resync_gap, m.live_after_lsn IS NOT NULL AND m.state = 'copying' AS complete, c.replicated_lsn,
           h.pages,
           CASE WHEN m.live_after_lsn IS NOT NULL OR m.state = 'filling' THEN 1.0
                ELSE coalesce(k.done::float8 / nullif(k.total, 0), 0.0) END AS done
      FROM modak.mirror_tables m
      JOIN modak.cutline c USING (table_id)
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(greatest(r.relpages, 0)), 0) + 1 AS pages
             FROM modak.mirror_tree(m.table_id::oid) t JOIN pg_class r ON r.oid = t.relation WHERE t.is_leaf) h
     CROSS JOIN LATERAL (
           SELECT count(*) AS total, count(p.done_at) AS done
             FROM modak.copy_chunks p WHERE p.table_id = m.table_id AND p.generation = m.generation) k
     WHERE m.slot_name = %s AND m.resync_since IS NOT NULL AND m.state IN ('waiting', 'copying', 'filling') AND m.paused_at IS NULL)
SELECT resync_since AS since, bool_or(resync_gap) AS slot_lost, count(*) AS tables,
       count(*) FILTER (WHERE complete) AS tables_copied, min(replicated_lsn) AS frontier,
       (sum(pages * done) / sum(pages))::float8 AS copied
  FROM copied
 GROUP BY resync_since ORDER BY resync_since;

-- name: applied
SELECT applied_lsn FROM modak.mirror_slots WHERE slot_name = %(slot)s;

-- name: frontier
-- `promised` leaves out tables that are copied again on request or after a schema change: others need not wait for them.
-- `behind` names all tables that are not at the target. On another server than the mirror's, positions say nothing.
SELECT s.applied_lsn AS applied,
       (SELECT min(c.replicated_lsn)
          FROM modak.mirror_tables m JOIN modak.cutline c USING (table_id)
         WHERE m.slot_name = s.slot_name
           AND (m.state = 'live' OR m.resync_gap AND m.state IN ('waiting', 'copying', 'filling')
                                    AND NOT (m.state = 'waiting' AND m.error IS NOT NULL))) AS promised,
       (SELECT coalesce(jsonb_agg(to_jsonb(b)), '[]') FROM modak.mirror_behind(s.slot_name, %(target)s) b
         WHERE s.streams) AS behind,
       (SELECT r.active FROM pg_replication_slots r WHERE r.slot_name = s.slot_name) AS active, s.streams, s.last_error,
       s.system_identifier = (SELECT c.system_identifier::text FROM pg_control_system() c) AS accepted_server,
       clock_timestamp() AS now
  FROM modak.mirror_slots s WHERE s.slot_name = %(slot)s;
