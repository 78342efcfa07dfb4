-- Schema changes in the publish transaction (mirror_pump/pipeline/operations/catalog_changes.py).

-- name: store
-- `former` and `state` are a transition that mirror_pump/table_life.py allows.
-- `partition_fields`: a copy is divided by them. NULL: as before. The order of rows is a matter of `register --alter` alone.
-- Chunks of tiered partitions were read with the former columns, and are read again.
WITH seam AS (
    UPDATE modak.tables
       SET primary_key_cols = %(key)s, tier_key_col = %(tier_key)s, tier_key_type = %(tier_key_type)s,
           partition_scheme = CASE WHEN %(partition_fields)s::jsonb IS NULL THEN partition_scheme
                                   ELSE jsonb_build_object('fields', %(partition_fields)s::jsonb,
                                                           'order', coalesce(partition_scheme -> 'order', '[]')) END
     WHERE table_id = %(table_id)s),
chunks AS (DELETE FROM modak.partition_chunks WHERE table_id = %(table_id)s)
UPDATE modak.mirror_tables
   SET columns = %(columns)s, key = %(key)s, next_field_id = %(next_field_id)s, shape = %(shape)s::jsonb,
       excluded = %(excluded)s,
       start_lsn = %(start_lsn)s, error = %(error)s,
       state = %(state)s,
       where_different = where_different AND (%(where_different)s OR NOT %(copy_again)s),
       dropped_rows = CASE WHEN %(copy_again)s THEN NULL
                           ELSE nullif(coalesce(dropped_rows, '[]') || %(dropped_rows)s, '[]') END,
       live_after_lsn = CASE WHEN %(fills)s AND state NOT IN ('copying', 'waiting') THEN NULL ELSE live_after_lsn END
 WHERE table_id = %(table_id)s AND state = %(former)s;

-- name: complete_corrections
-- Corrections that a concurrent transaction captured, which the transaction of the change did not see.
SELECT modak.complete_corrections(%(table_id)s, %(columns)s, false);

-- name: names
SELECT table_id, schema_name, table_name FROM modak.tables;

-- name: lake_names
SELECT table_namespace, table_name FROM modak.iceberg_tables WHERE catalog_name = 'lake';

-- name: rename
WITH former AS (
    SELECT t.schema_name, m.lake_table FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
     WHERE t.table_id = %(table_id)s),
pointer AS (
    UPDATE modak.iceberg_tables i SET table_namespace = %(schema)s, table_name = %(name)s FROM former f
     WHERE i.catalog_name = 'lake' AND i.table_namespace = f.schema_name AND i.table_name = f.lake_table),
mirror AS (
    UPDATE modak.mirror_tables SET lake_table = %(name)s WHERE table_id = %(table_id)s)
UPDATE modak.tables
   SET schema_name = %(schema)s, table_name = %(name)s, lake_table_ref = %(schema)s || '.' || %(name)s
 WHERE table_id = %(table_id)s;
