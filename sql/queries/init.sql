-- What `init` records (mirror_pump/ops/setup: initialisation.py, undo.py).

-- name: slots
-- Also before the migration that adds the column `streams`: until then all mirrors had a stream.
SELECT slot_name, publication_name, system_identifier, timeline, database_name, applied_lsn,
       coalesce((to_jsonb(s) ->> 'streams')::boolean, true) AS streams
  FROM modak.mirror_slots s WHERE database_name = current_database() ORDER BY slot_name;

-- name: profile
SELECT warehouse, coalesce(lake_config, '{}') FROM modak.storage_profiles WHERE profile_name = 'default' FOR UPDATE;

-- name: new_profile
INSERT INTO modak.storage_profiles (profile_name, warehouse, is_default)
SELECT 'default', '', NOT EXISTS (SELECT FROM modak.storage_profiles WHERE is_default);

-- name: store_profile
UPDATE modak.storage_profiles SET warehouse = %s, lake_format = 'iceberg', lake_config = %s WHERE profile_name = 'default';

-- name: store_slot
INSERT INTO modak.mirror_slots
       (slot_name, publication_name, system_identifier, timeline, database_name, applied_lsn, applied_at, streams)
VALUES (%s, %s, %s, %s, %s, %s, now(), %s)
ON CONFLICT (slot_name) DO UPDATE
   SET applied_lsn = excluded.applied_lsn, applied_at = excluded.applied_at, applied_commit_time = NULL,
       system_identifier = excluded.system_identifier, timeline = excluded.timeline;

-- name: begin_streaming
-- A mirror without a stream gets one, which begins at the slot's position, or at the frontier: a pump may have moved that
-- meanwhile, and no table depends on a change from before.
UPDATE modak.mirror_slots SET streams = true, applied_lsn = greatest(applied_lsn, %(position)s), applied_at = now()
 WHERE slot_name = %(slot)s
RETURNING applied_lsn;

-- name: drop_slot
-- Slots belong to the whole server: another database may have a slot of this name by now.
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
 WHERE slot_name = %(slot)s AND database = current_database();

-- name: computed
SELECT quote_ident(t.schema_name) || '.' || quote_ident(t.table_name) AS name,
       m.retention IS NOT NULL OR modak.moved_cut(m.table_id) IS NOT NULL AS sheds,
       array_agg(a.attname::text ORDER BY a.attnum) AS columns
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN pg_attribute a ON a.attrelid = m.table_id::oid
 WHERE t.publication_name = %s AND m.state NOT IN ('failed', 'dropped') AND a.attgenerated = 's' AND NOT a.attisdropped
 GROUP BY m.table_id, t.schema_name, t.table_name ORDER BY 1;
