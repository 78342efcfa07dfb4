-- The statements of the publish transaction (mirror_pump/pipeline/publish.py), in the order in which they run.

-- name: registrations
-- Where each table stands, its Iceberg pointer, and the snapshots that readers have pinned.
SELECT m.table_id, m.state, m.start_lsn, m.generation, i.metadata_location,
       coalesce((SELECT array_agg(DISTINCT p.pinned_lake_snapshot_id)
                   FROM modak.read_pins p
                  WHERE p.table_id = m.table_id AND p.expires_at > now()), '{}')
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = t.schema_name AND i.table_name = m.lake_table
 WHERE m.table_id = ANY (%(table_ids)s);

-- name: lock_slot
-- Also makes a later reader of an unknown outcome wait for this transaction's end.
SELECT leader_epoch, applied_lsn, publish_id FROM modak.mirror_slots WHERE slot_name = %(slot)s FOR UPDATE;

-- name: touch_table
UPDATE modak.mirror_tables
   SET generation = generation + CASE WHEN %(again)s THEN 1 ELSE 0 END,
       live_after_lsn = CASE WHEN %(again)s THEN NULL
                             ELSE greatest(live_after_lsn,
                                           CASE WHEN live_after_lsn IS NOT NULL THEN %(not_live_before)s::bigint END) END,
       updated_at = now()
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND generation = %(generation)s AND state <> 'failed';

-- name: publish_snapshot
UPDATE modak.cutline
   SET lake_snapshot_id = %(snapshot_id)s, lake_props = %(props)s, updated_at = now()
 WHERE table_id = %(table_id)s;

-- name: forget_chunks
WITH gone AS (DELETE FROM modak.copy_chunks WHERE table_id = %(table_id)s)
DELETE FROM modak.copy_progress WHERE table_id = %(table_id)s;

-- name: chunk_done
UPDATE modak.copy_chunks SET done_at = now(), rows = %(rows)s
 WHERE table_id = %(table_id)s AND generation = %(generation)s AND chunk_no = %(chunk_no)s;

-- name: copy_progress
-- After the last chunk the table may go live once F passes the present end of WAL: what any chunk saw ends before it.
WITH progress AS (
    UPDATE modak.copy_progress
       SET chunks_done = (SELECT count(*) FROM modak.copy_chunks
                           WHERE table_id = %(table_id)s AND generation = %(generation)s AND done_at IS NOT NULL),
           updated_at = now()
     WHERE table_id = %(table_id)s)
UPDATE modak.mirror_tables
   SET live_after_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint
 WHERE table_id = %(table_id)s AND state = 'copying' AND live_after_lsn IS NULL
   AND NOT EXISTS (SELECT FROM modak.copy_chunks
                    WHERE table_id = %(table_id)s AND generation = %(generation)s AND done_at IS NULL);

-- name: fail
UPDATE modak.mirror_tables SET state = 'failed', error = %(error)s, updated_at = now()
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s;

-- name: advance
UPDATE modak.mirror_slots
   SET applied_lsn = %(frontier)s, publish_id = %(publish_id)s, applied_at = now(),
       applied_commit_time = CASE WHEN %(commit_time)s::float8 > 0 THEN to_timestamp(%(commit_time)s)
                                  ELSE applied_commit_time END
 WHERE slot_name = %(slot)s;

-- name: go_live
WITH live AS (
    UPDATE modak.mirror_tables SET state = 'live', updated_at = now()
     WHERE slot_name = %(slot)s AND state = 'copying' AND live_after_lsn <= %(frontier)s
    RETURNING table_id),
done AS (DELETE FROM modak.copy_progress WHERE table_id IN (SELECT table_id FROM live))
SELECT table_id FROM live;

-- name: promise
-- Every live table gets the same F, idle ones too: a reader of two tables at one F sees one point in time.
UPDATE modak.cutline c
   SET replicated_lsn = %(frontier)s, updated_at = now()
  FROM modak.mirror_tables m
 WHERE m.table_id = c.table_id AND m.slot_name = %(slot)s AND m.state = 'live'
   AND c.replicated_lsn IS DISTINCT FROM %(frontier)s;
