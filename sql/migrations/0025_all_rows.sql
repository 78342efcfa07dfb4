-- Tables that were registered without their rows, and were not copied since, are copied: each table of the mirror has all rows.
-- As `mark` in sql/queries/resync.sql; readers keep what they see meanwhile. The lock of the slot's row keeps publishes away.
SELECT slot_name FROM modak.mirror_slots FOR UPDATE;
WITH marked AS (
    UPDATE modak.mirror_tables m
       SET state = 'waiting', start_lsn = greatest((pg_current_wal_insert_lsn() - '0/0')::bigint, start_lsn + 1),
           generation = generation + 1, live_after_lsn = NULL, staged_snapshot_id = NULL,
           staged_location = CASE WHEN state <> 'live' THEN staged_location
                                  ELSE (SELECT i.metadata_location FROM modak.iceberg_tables i JOIN modak.tables t
                                            ON (i.catalog_name, i.table_namespace, i.table_name) = ('lake', t.schema_name, m.lake_table)
                                         WHERE t.table_id = m.table_id) END,
           key_index = key_index - '{phase,rows,bytes}'::text[], where_different = false,
           resync_since = clock_timestamp(), updated_at = clock_timestamp()
     WHERE no_copy AND generation = 0 AND state IN ('copying', 'filling', 'live')
    RETURNING table_id),
chunks AS (DELETE FROM modak.copy_chunks WHERE table_id IN (SELECT table_id FROM marked))
DELETE FROM modak.copy_progress WHERE table_id IN (SELECT table_id FROM marked);
ALTER TABLE modak.mirror_tables DROP COLUMN no_copy;
