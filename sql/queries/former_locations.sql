-- Locations with files of registrations that have ended (mirror_pump/source/catalog/former_locations.py).

-- name: record
-- Runs in the transaction that ends the registration, before its rows are deleted.
INSERT INTO modak.former_locations
       (location, schema_name, table_name, metadata_location, registered_at, ended_by, only_copy)
SELECT m.location, t.schema_name, m.lake_table, i.metadata_location, t.created_at, %(ended_by)s, %(only_copy)s
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = %(table_id)s
ON CONFLICT (location) DO NOTHING;

-- name: record_feed
-- As `record`, of a change feed.
INSERT INTO modak.former_locations
       (location, schema_name, table_name, metadata_location, registered_at, ended_by, only_copy)
SELECT f.location, f.namespace, f.name, i.metadata_location, f.created_at, 'unregister', false
  FROM modak.change_feeds f
  LEFT JOIN modak.iceberg_tables i ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
 WHERE f.feed_id = %s
ON CONFLICT (location) DO NOTHING;

-- name: list
SELECT location, schema_name, table_name, metadata_location, registered_at, ended_at, ended_by, only_copy
  FROM modak.former_locations ORDER BY schema_name, table_name, ended_at, location;

-- name: registered
-- The registrations whose files are at, within or around a location.
SELECT t.schema_name AS schema, t.table_name AS name
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE starts_with(rtrim(m.location, '/') || '/', rtrim(%(location)s, '/') || '/')
    OR starts_with(rtrim(%(location)s, '/') || '/', rtrim(m.location, '/') || '/');

-- name: pointers
-- The tables of the catalog, of any name, whose metadata is below a location, or was before the last commit.
SELECT catalog_name, table_namespace, table_name
  FROM modak.iceberg_tables
 WHERE starts_with(coalesce(metadata_location, ''), rtrim(%(location)s, '/') || '/')
    OR starts_with(coalesce(previous_metadata_location, ''), rtrim(%(location)s, '/') || '/');

-- name: is_former
SELECT FROM modak.former_locations WHERE starts_with(%(pointer)s, rtrim(location, '/') || '/') LIMIT 1;

-- name: committed
-- The newest metadata file of a lake table. Another engine may have committed to it since its registration ended.
UPDATE modak.former_locations SET metadata_location = %(pointer)s
 WHERE starts_with(%(pointer)s, rtrim(location, '/') || '/');

-- name: forget
DELETE FROM modak.former_locations WHERE location = %(location)s;
