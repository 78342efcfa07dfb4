-- Files of the lake whose content cannot be read (mirror_pump/pipeline/missing_files/damaged_files.py).

-- name: record
INSERT INTO modak.mirror_damaged_files (table_id, location, error)
SELECT m.table_id, %(location)s, %(error)s FROM modak.mirror_tables m WHERE m.table_id = %(table_id)s
ON CONFLICT DO NOTHING;

-- name: recorded
SELECT d.table_id, d.location, array_remove(ARRAY[i.metadata_location, m.staged_location], NULL) AS metadata_files
  FROM modak.mirror_damaged_files d JOIN modak.mirror_tables m USING (table_id) LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s ORDER BY d.table_id, d.location;

-- name: forget
DELETE FROM modak.mirror_damaged_files WHERE table_id = %(table_id)s AND location = %(location)s;

-- name: needed
-- What needs files of the lake: tables, feeds, and tables of moments; each with the metadata files that its readers open.
SELECT 'table' AS kind, m.table_id AS owner_id, '' AS moment, i.metadata_location, m.location
  FROM modak.mirror_tables m JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped')
 UNION ALL
SELECT 'feed', f.feed_id, '', i.metadata_location, f.location
  FROM modak.change_feeds f
  JOIN modak.iceberg_tables i ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
 WHERE f.slot_name = %(slot)s
 UNION ALL
SELECT 'moment', k.table_id, k.name, l.metadata_location, l.metadata_location
  FROM modak.moment_tables k CROSS JOIN LATERAL (SELECT k.metadata_location UNION SELECT k.main_location) l
 WHERE k.slot_name = %(slot)s
 ORDER BY kind, owner_id, moment, metadata_location;

-- name: record_of_feed
UPDATE modak.change_feeds SET damaged_files = %(locations)s
 WHERE feed_id = %(owner_id)s AND location = %(location)s AND damaged_files <> %(locations)s::text[];

-- name: record_of_moment
UPDATE modak.moment_tables SET damaged_files = %(locations)s
 WHERE slot_name = %(slot)s AND name = %(moment)s AND table_id = %(owner_id)s AND damaged_files <> %(locations)s::text[];
