-- Rows of schema modak that a partial restore has lost (mirror_pump/source/catalog/lost_rows.py).

-- name: lost
SELECT relation, table_id, table_name, in_lake_alone FROM modak.mirror_lost_rows() ORDER BY table_name NULLS FIRST, relation;

-- name: lost_slot
-- What is known of a mirror whose row of modak.mirror_slots is gone; no row if it is there, or there are no mirrored tables.
SELECT t.slot_name, t.publication_name, max(c.replicated_lsn) AS frontier
  FROM modak.tables t LEFT JOIN modak.cutline c USING (table_id)
 WHERE t.slot_name IS NOT NULL AND NOT EXISTS (SELECT FROM modak.mirror_slots s WHERE s.slot_name = t.slot_name)
 GROUP BY t.slot_name, t.publication_name;

-- name: begun
-- Whether the catalog has any row of a registration.
SELECT EXISTS (SELECT FROM modak.tables t WHERE t.table_id = %(table_id)s)
    OR EXISTS (SELECT FROM modak.mirror_tables m WHERE m.table_id = %(table_id)s);

-- name: new_secret
INSERT INTO modak.mirror_secret SELECT gen_random_uuid()::text || gen_random_uuid()::text
 WHERE NOT EXISTS (SELECT FROM modak.mirror_secret);

-- name: new_shape
-- As the pump knows the table: the watcher finds what has changed since.
INSERT INTO modak.mirror_shapes (table_id, shape)
SELECT m.table_id, coalesce(m.shape, '{}') FROM modak.mirror_tables m WHERE m.table_id = %(table_id)s ON CONFLICT DO NOTHING;

-- name: keep_location
-- The location of the files, if any row still tells it.
INSERT INTO modak.former_locations (location, schema_name, table_name, metadata_location, registered_at, ended_by)
SELECT coalesce(m.location, regexp_replace(i.metadata_location, '/metadata/[^/]*$', '')), k.namespace, k.lake_table,
       i.metadata_location, coalesce(t.created_at, now()), 'unregister'
  FROM (SELECT %(table_id)s::bigint AS table_id) w
  LEFT JOIN modak.tables t USING (table_id) LEFT JOIN modak.mirror_tables m USING (table_id)
  LEFT JOIN pg_class c ON c.oid = w.table_id::oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT coalesce(t.schema_name, n.nspname::text) AS namespace, coalesce(m.lake_table, t.table_name) AS lake_table) k
  LEFT JOIN modak.iceberg_tables i
    ON (i.catalog_name, i.table_namespace, i.table_name) = ('lake', k.namespace, k.lake_table)
 WHERE coalesce(m.location, i.metadata_location) IS NOT NULL AND k.namespace IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: end
SELECT modak.mirror_end_lost(%(table_id)s);

-- name: seam_version
INSERT INTO modak.schema_meta (version) SELECT %(version)s WHERE NOT EXISTS (SELECT FROM modak.schema_meta);

-- name: namespaces
SELECT DISTINCT t.schema_name FROM modak.tables t JOIN modak.mirror_tables m USING (table_id);
