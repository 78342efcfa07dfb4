-- `mirror-pump pause` and `resume` (mirror_pump/source/catalog/pauses.py).

-- name: pause
-- Like a table that is not published whole, it waits until somebody acts: `error` says so to all that reads the state.
UPDATE modak.mirror_tables SET paused_at = clock_timestamp(), error = %(error)s
 WHERE table_id = %(table_id)s AND state = 'waiting'
RETURNING paused_at;

-- name: resume
UPDATE modak.mirror_tables SET paused_at = NULL WHERE table_id = %(table_id)s;

-- name: due
-- Tables whose changes are not followed, and which are complete, or due to be copied again.
SELECT m.table_id, t.schema_name AS schema, t.table_name AS name, m.paused_at IS NOT NULL AS rests
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.snapshot_only
   AND (m.state = 'live' OR m.state = 'waiting' AND m.paused_at + m.snapshot_every <= clock_timestamp())
 ORDER BY 2, 3;

-- name: not_resumed
UPDATE modak.mirror_tables SET error = %(error)s WHERE table_id = %(table_id)s AND paused_at IS NOT NULL;
