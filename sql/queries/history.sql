-- What the mirror records of the server's history (mirror_pump/pipeline/session/history.py).

-- name: pointers
-- The metadata files that the Iceberg catalog names.
SELECT t.schema_name, t.table_name, i.metadata_location
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state <> 'dropped' AND i.metadata_location IS NOT NULL
 ORDER BY t.schema_name, t.table_name;

-- name: record_timeline
UPDATE modak.mirror_slots SET timeline = %(timeline)s WHERE slot_name = %(slot)s;
