-- What the upkeep of tables asks the catalog (mirror_pump/pipeline/upkeep.py).

-- name: mirrored
-- Tables whose files may have to be exchanged now or later, with their present Iceberg metadata.
SELECT m.table_id, i.metadata_location
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table
 WHERE m.slot_name = %(slot)s AND m.state <> 'failed'
 ORDER BY m.table_id;

-- name: free_to_change
-- The table's present Iceberg metadata, if its files may be exchanged at all. Never while it is copied: a chunk that
-- lands later is born at s0 and needs the deletes. Not under a rewrite either (mirror_pump/source/maintenance.py).
SELECT i.metadata_location
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table
 WHERE m.table_id = %(table_id)s AND m.state = 'live'
   AND NOT EXISTS (SELECT FROM modak.op_log o
                    WHERE o.table_id = m.table_id AND o.phase = 'rewriting' AND o.updated_at > now() - interval '60 s');
