-- What the upkeep of tables reads from the catalog (mirror_pump/pipeline/upkeep/upkeep_threads.py).

-- name: mirrored
-- Tables whose files may have to be exchanged now or later, with their present Iceberg metadata.
SELECT m.table_id, CASE m.state WHEN 'filling' THEN coalesce(m.staged_location, i.metadata_location)
                   ELSE i.metadata_location END
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped')
 ORDER BY m.table_id;

-- name: free_to_change
-- The table's present Iceberg metadata, if its files may be exchanged. Not while it is copied: later chunks have the start
-- sequence number and need the present deletes. Nor during a rewrite (mirror_pump/source/catalog/maintenance.py).
SELECT i.metadata_location
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = %(table_id)s AND m.state = 'live'
   AND NOT EXISTS (SELECT FROM modak.op_log o
                    WHERE o.table_id = m.table_id AND o.phase = 'rewriting' AND o.updated_at > now() - interval '60 s');

-- name: free_to_fill
-- The table's staged Iceberg metadata, if some of its rows still lack the value of a new column. A rewrite by another engine
-- concerns the metadata that readers see, so it does not conflict.
SELECT coalesce(m.staged_location, i.metadata_location)
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = %(table_id)s AND m.state = 'filling' AND m.live_after_lsn IS NULL;

-- name: filled
-- Every file has the columns that the table had when its files were listed, so the table may go live once the frontier passes
-- the present end of WAL; a tiered one at once. Not if its columns have changed since.
UPDATE modak.mirror_tables
   SET live_after_lsn = CASE WHEN modak.streams(table_id) THEN (pg_current_wal_insert_lsn() - '0/0')::bigint ELSE 0 END
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND state = 'filling' AND live_after_lsn IS NULL
   AND columns = %(columns)s AND coalesce(dropped_rows, '[]') = %(dropped_rows)s;

-- name: not_fillable
-- Makes the next session copy the table again (mirror_pump/pipeline/schema/publication_changes.py).
UPDATE modak.mirror_tables SET published = 'its files cannot be filled'
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND state = 'filling';
