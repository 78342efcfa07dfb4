-- Planning and following initial copies (mirror_pump/pipeline/copy/copier.py, registration.py).

-- name: unfinished
-- Tables whose copy is not complete, and whether their chunks are planned. Small ones come first, by the server's estimates.
WITH RECURSIVE heaps AS (
    SELECT m.table_id, m.table_id::oid AS relation FROM modak.mirror_tables m
     WHERE m.slot_name = %(slot)s AND m.state = 'copying' AND m.live_after_lsn IS NULL AND m.where_different = %(where_different)s
     UNION ALL
    SELECT h.table_id, i.inhrelid FROM heaps h JOIN pg_inherits i ON i.inhparent = h.relation)
SELECT h.table_id, EXISTS (SELECT FROM modak.copy_progress p WHERE p.table_id = h.table_id)
  FROM heaps h LEFT JOIN pg_class r ON r.oid = h.relation
 GROUP BY h.table_id
 ORDER BY sum(greatest(r.relpages, 0)) NULLS FIRST, 1;

-- name: chunks
SELECT c.chunk_no, c.relation_id, n.nspname AS schema_name, r.relname AS relation_name, c.filenode, c.lo_block, c.hi_block
  FROM modak.copy_chunks c
  LEFT JOIN pg_class r ON r.oid = c.relation_id::oid
  LEFT JOIN pg_namespace n ON n.oid = r.relnamespace
 WHERE c.table_id = %(table_id)s AND c.generation = %(generation)s AND c.done_at IS NULL
 ORDER BY c.chunk_no;

-- name: hold
-- Keeps writers out of a table without a key until the transaction ends. NULL if it is not to be copied any more.
SELECT modak.mirror_hold(%(table_id)s);

-- name: plan
INSERT INTO modak.copy_progress (table_id, consistent_point, chunks_done)
SELECT table_id, start_lsn, 0 FROM modak.mirror_tables
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND generation = %(generation)s AND state = 'copying'
ON CONFLICT (table_id) DO NOTHING;

-- name: plan_chunk
INSERT INTO modak.copy_chunks (table_id, generation, chunk_no, relation_id, filenode, lo_block, hi_block)
VALUES (%(table_id)s, %(generation)s, %(chunk_no)s, %(relation_id)s, %(filenode)s, %(lo_block)s, %(hi_block)s);

-- name: nothing_to_copy
UPDATE modak.mirror_tables SET live_after_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint
 WHERE table_id = %(table_id)s AND state = 'copying';

-- name: progress
-- A table whose changes are not followed rests once its copy is complete.
SELECT t.schema_name, t.table_name, CASE WHEN m.snapshot_only AND m.paused_at IS NOT NULL THEN 'snapshot' ELSE m.state END AS state,
       CASE WHEN m.snapshot_only AND m.paused_at IS NOT NULL THEN '' ELSE coalesce(m.error, '') END AS error,
       count(c.*) FILTER (WHERE c.done_at IS NOT NULL) AS chunks_done, count(c.*) AS chunks_total,
       coalesce(sum(c.rows), 0)::bigint AS rows
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.copy_chunks c ON c.table_id = m.table_id AND c.generation = m.generation
 WHERE m.table_id = ANY (%(table_ids)s)
 GROUP BY m.table_id, t.schema_name, t.table_name
 ORDER BY m.table_id;

-- name: copied_to
-- The metadata file on which the commits of a copy build.
SELECT coalesce(m.staged_location, i.metadata_location)
  FROM modak.mirror_tables m LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = %(table_id)s;
