-- `mirror-pump resync` (mirror_pump/source/catalog/resync.py).

-- name: begin_stream
-- The stream begins at a new position. Nothing of what was committed between the former one and this one will ever come, so
-- the same transaction has to mark every table. The frontier does not move back, and the timeline stays.
UPDATE modak.mirror_slots
   SET applied_lsn = %(position)s, applied_at = clock_timestamp(), applied_commit_time = NULL, last_error = NULL
 WHERE slot_name = %(slot)s AND applied_lsn <= %(position)s AND timeline = %(timeline)s
RETURNING slot_name;

-- name: mark
-- Tables that are to be copied again wait until the stream describes them. Readers of a live table keep what they see: the
-- pump continues on the same metadata, which is its own from now on.
WITH marked AS (
    UPDATE modak.mirror_tables m
       SET state = %(state)s, start_lsn = greatest(%(position)s::bigint, start_lsn + 1), generation = generation + 1,
           live_after_lsn = NULL,
           -- What readers see may have moved while a paused table waited, by another engine's rewrite.
           staged_location = CASE WHEN state = 'live' OR state = 'waiting' AND where_different AND staged_snapshot_id IS NULL
                                  THEN (SELECT i.metadata_location FROM modak.lake_pointers i WHERE i.table_id = m.table_id)
                                  ELSE staged_location END,
           staged_snapshot_id = CASE WHEN state = 'live' THEN NULL ELSE staged_snapshot_id END,
           error = CASE WHEN paused_at IS NOT NULL THEN error
                        ELSE (SELECT %(keyless)s::text FROM modak.mirror_shapes s
                               WHERE s.table_id = m.table_id AND s.shape IS NOT NULL AND NOT (modak.mirror_has_key(s.shape) OR m.key = '{}')) END,
           key_index = key_index - '{phase,rows,bytes}'::text[],
           where_different = %(where_different)s AND state <> 'filling' AND (where_different OR state <> 'waiting'),
           resync_since = coalesce(%(since)s, resync_since), resync_gap = resync_gap OR %(gap)s, updated_at = clock_timestamp()
     WHERE slot_name = %(slot)s AND state = ANY (%(former)s) AND table_id = ANY (%(table_ids)s)
    RETURNING table_id),
gone AS (
    -- The note of a table that was dropped may be lost with the slot: the pump has to find the difference again.
    UPDATE modak.mirror_shapes s SET shape = coalesce(m.shape, '{}')
      FROM modak.mirror_tables m
     WHERE m.table_id = s.table_id AND s.shape IS NULL AND s.table_id IN (SELECT table_id FROM marked)),
chunks AS (DELETE FROM modak.copy_chunks WHERE table_id IN (SELECT table_id FROM marked)),
progress AS (DELETE FROM modak.copy_progress WHERE table_id IN (SELECT table_id FROM marked))
SELECT table_id FROM marked;

-- name: repairs
-- What the last copies of these tables replaced, if they were comparisons, and the frontiers that readers have now.
SELECT m.table_id, c.replicated_lsn AS frontier, (m.compared ->> 'heap_rows')::bigint AS heap_rows, (m.compared ->> 'lake_rows')::bigint AS lake_rows,
       (m.compared ->> 'missing')::bigint AS missing, (m.compared ->> 'extra')::bigint AS extra, (m.compared ->> 'different')::bigint AS different
  FROM modak.mirror_tables m JOIN modak.cutline c USING (table_id)
 WHERE m.table_id = ANY (%(table_ids)s) AND (m.compared ->> 'generation')::bigint = m.generation;

-- name: sizes
-- What a copy of each table reads from the heap: bytes and the server's estimates of rows.
SELECT m.table_id, coalesce(sum(c.relpages), 0)::bigint * current_setting('block_size')::bigint AS size_bytes,
       greatest(sum(c.reltuples), 0)::bigint AS rows
  FROM modak.mirror_tables m
  LEFT JOIN LATERAL modak.mirror_tree(m.table_id::oid) r ON r.is_leaf
  LEFT JOIN pg_class c ON c.oid = r.relation
 WHERE m.table_id = ANY (%(table_ids)s)
 GROUP BY m.table_id;

-- name: tables
-- The registered tables whose changes come by the stream. `kept_below`: the cut-line, if rows may be below it, which only the lake has. `left_to_the_lake`:
-- tier values above it at which only the lake may have rows (as in publish.sql).
SELECT m.table_id, t.schema_name, t.table_name, m.state, coalesce(m.error, '') AS error, m.resync_since, m.paused_at AS paused_since, m.snapshot_only,
       t.tier_key_type, modak.moved_cut(m.table_id) AS kept_below,
       modak.kept_above(m.table_id) AS left_to_the_lake
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.slot_name = %(slot)s AND t.mode = 'mirrored'
 ORDER BY t.schema_name, t.table_name;
