-- The Iceberg pointer of each mirrored table. Iceberg's catalog identifies the table by name, the mirror by OID.

CREATE OR REPLACE VIEW modak.lake_pointers AS
SELECT t.table_id, i.metadata_location, i.previous_metadata_location
  FROM modak.mirror_tables m
  JOIN modak.tables t ON t.table_id = m.table_id
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table
   -- A view of that name is no table.
   AND (i.iceberg_type = 'TABLE' OR i.iceberg_type IS NULL);
COMMENT ON VIEW modak.lake_pointers IS 'The present metadata file of each mirrored table; none for one whose lake table is gone';
