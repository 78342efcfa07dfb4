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
