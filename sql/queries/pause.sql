-- `mirror-pump pause` and `resume` (mirror_pump/source/catalog/pauses.py).

-- name: pause
-- Like a table that is not published whole, it waits until somebody acts: `error` says so to all that reads the state.
UPDATE modak.mirror_tables SET paused_at = clock_timestamp(), error = %(error)s
 WHERE table_id = %(table_id)s AND state = 'waiting'
RETURNING paused_at;

-- name: resume
UPDATE modak.mirror_tables SET paused_at = NULL WHERE table_id = %(table_id)s;
