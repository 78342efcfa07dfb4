-- Moments that are kept (mirror_pump/source/catalog/kept_moments.py).

-- name: insert
INSERT INTO modak.moments (slot_name, name, frontier, note) VALUES (%(slot)s, %(name)s, %(frontier)s, %(note)s);

-- name: insert_tables
INSERT INTO modak.moment_tables (slot_name, name, table_id, schema_name, table_name, snapshot_id, metadata_location,
                                 main_snapshot_id, main_location)
SELECT %(slot)s, %(name)s, k.*
  FROM unnest(%(table_ids)s::bigint[], %(schemas)s::text[], %(tables)s::text[], %(snapshot_ids)s::bigint[],
              %(locations)s::text[], %(main_snapshot_ids)s::bigint[], %(main_locations)s::text[]) k;

-- name: moment_tables
-- The tables of all moments (`name` NULL), or of the one of that name. `pointer` is the metadata file that the catalog names; NULL
-- if the table is not registered any more, or anew elsewhere.
SELECT k.name, s.frontier, s.kept_at, s.kept_by, s.note, k.table_id, k.schema_name, k.table_name, k.snapshot_id,
       k.metadata_location, k.main_snapshot_id, k.main_location, k.damaged_files,
       CASE WHEN starts_with(k.metadata_location, rtrim(m.location, '/') || '/') THEN i.metadata_location END AS pointer
  FROM modak.moments s
  JOIN modak.moment_tables k USING (slot_name, name)
  LEFT JOIN modak.mirror_tables m ON m.table_id = k.table_id AND m.slot_name = k.slot_name
  LEFT JOIN modak.lake_pointers i ON i.table_id = m.table_id
 WHERE k.slot_name = %(slot)s AND (%(name)s::text IS NULL OR k.name = %(name)s)
 ORDER BY s.frontier, k.name, k.schema_name, k.table_name;

-- name: drop
DELETE FROM modak.moments WHERE slot_name = %(slot)s AND name = %(name)s;

-- name: of_table
-- Moments that need files of a registration.
SELECT DISTINCT k.name
  FROM modak.moment_tables k JOIN modak.mirror_tables m USING (table_id)
 WHERE k.table_id = %(table_id)s AND starts_with(k.metadata_location, rtrim(m.location, '/') || '/') ORDER BY 1;

-- name: tags
-- The snapshots of a table that moments need. It may have been registered anew since, with a history of its own.
SELECT name, ARRAY[snapshot_id, main_snapshot_id] AS snapshot_ids FROM modak.moment_tables WHERE table_id = %(table_id)s;

-- name: at_location
-- Moments that need files below a location.
SELECT DISTINCT k.name FROM modak.moment_tables k
 WHERE starts_with(k.metadata_location, rtrim(%(location)s, '/') || '/') ORDER BY 1;
