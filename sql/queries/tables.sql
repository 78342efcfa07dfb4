-- Registrations of mirrored tables (mirror_pump/source/catalog/tables.py, ops/register/unregistration.py).

-- name: columns_now
-- The columns of a table in the catalog, which stay so until the transaction ends: a publish that changes them waits.
SELECT columns FROM modak.mirror_tables WHERE table_id = %(table_id)s FOR SHARE;

-- name: select
-- All columns of mirrored tables. The program appends a condition.
SELECT t.table_id, t.schema_name, t.table_name, m.columns, m.key, m.state, m.start_lsn,
       m.start_sequence AS data_sequence_number, m.generation,
       m.lake_table, m.location, m.live_after_lsn, m.next_field_id, coalesce(m.shape::text, '') AS shape, m.excluded, m.leaves_out_new,
       m.column_list, m.row_filter, m.paused_at AS paused_since, m.snapshot_only, m.snapshot_every, m.where_different,
       coalesce(m.dropped_rows, '[]') AS dropped_rows, m.kept_ranges,
       t.tier_key_col, t.tier_key_type, c.tier_key_hi, c.retention_line, t.mode,
       modak.lag_of(t.mode, t.heap_retention_lag, m.retention) AS lag, t.partition_scheme,
       f.mode AS feed_mode, f.location AS feed_location,
       CASE WHEN f.begins_lsn IS NULL THEN coalesce(f.not_before_lsn, 0) ELSE 0 END AS feed_not_before,
       coalesce((m.lake_head ->> 'format_version')::integer, 2) AS format_version
FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN modak.cutline c USING (table_id)
LEFT JOIN modak.change_feeds f ON f.feed_id = t.table_id;

-- name: wants_defaults
SELECT maintenance_policy -> 'defaults_in_metadata' = 'true' FROM modak.tables WHERE table_id = %(table_id)s;

-- name: left_out
-- Names of the generated columns of each table that are not mirrored.
SELECT t.schema_name, t.table_name, modak.mirror_left_out(m.shape) AS columns
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) WHERE m.table_id = ANY (%s);

-- name: register
INSERT INTO modak.tables
       (table_id, schema_name, table_name, primary_key_cols, tier_key_col, tier_key_type, partition_scheme,
        lake_format, lake_table_ref, storage_profile, mode, publication_name, slot_name, heap_retention_lag, keep_heap)
VALUES (%(table_id)s, %(schema)s, %(name)s, %(key)s, %(tier_key)s, %(tier_key_type)s, %(partition_scheme)s, 'iceberg', %(ref)s,
        %(profile)s, %(mode)s, %(publication)s, %(slot)s, %(lag)s, %(keep_heap)s);

-- name: cutline
INSERT INTO modak.cutline
       (table_id, tier_key_hi, lake_snapshot_id, replicated_lsn, lake_props)
VALUES (%s, %s, %s, NULL, %s);

-- name: mirror
INSERT INTO modak.mirror_tables
       (table_id, slot_name, state, start_lsn, start_sequence, generation, live_after_lsn, columns, key, lake_table,
        location, next_field_id, excluded, leaves_out_new, column_list, row_filter, snapshot_only, snapshot_every,
        lake_head, shape)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, modak.mirror_shape(%s::bigint::oid));

-- name: formerly
-- The table registered under a name, which is given as in SQL or without quotes, with or without its schema.
SELECT table_id FROM modak.tables, LATERAL (VALUES
       (1, ARRAY[schema_name, table_name] = %(parts)s::text[] OR ARRAY[table_name] = %(parts)s::text[]),
       (2, schema_name || '.' || table_name = %(text)s), (3, table_name = %(text)s)) AS way (preference, fits)
 WHERE fits ORDER BY preference LIMIT 1;

-- name: analyze
ANALYZE (SKIP_LOCKED) modak.tables, modak.mirror_tables, modak.mirror_shapes, modak.cutline, modak.iceberg_tables, modak.former_locations;
