-- Tables that are copied again together (`mirror-pump resync`): when each table that is copied or filled may go live.

-- The tables of a slot whose copy or fill is complete up to a position, and the frontier that this position needs. With
-- `fills`, files with rows below the cut-line are filled from there on; otherwise the table goes live. The tables of a resync
-- go live together: none is listed before the last of them is complete, and all have the position of the last one. A table
-- that waits for its owner holds up no other. Reads the rows of complete tables, and of a resync one that is not complete: each
-- publish asks this.
CREATE OR REPLACE FUNCTION modak.mirror_due(slot text) RETURNS TABLE (table_id bigint, due_lsn bigint, fills boolean)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
WITH under_way AS NOT MATERIALIZED (
    SELECT m.table_id, m.state, m.resync_since, m.live_after_lsn, m.columns
      FROM modak.mirror_tables m LEFT JOIN modak.mirror_shapes s USING (table_id)
     WHERE m.slot_name = slot AND m.state IN ('waiting', 'copying', 'filling')
       AND NOT (m.state = 'waiting' AND (m.error IS NOT NULL OR NOT (modak.mirror_has_key(s.shape) OR m.key = '{}')))),
complete AS MATERIALIZED (
    SELECT u.table_id, u.resync_since, u.live_after_lsn,
           u.state = 'copying' AND u.columns @? '$[*] ? (@.initial != null)' AND modak.moved_cut(u.table_id) IS NOT NULL AS fills
      FROM under_way u WHERE u.live_after_lsn IS NOT NULL),
resyncs AS (
    SELECT c.resync_since, max(c.live_after_lsn) AS due_lsn,
           bool_or(c.fills) OR EXISTS (SELECT FROM under_way u
                                        WHERE u.resync_since = c.resync_since AND u.live_after_lsn IS NULL) AS unfinished
      FROM complete c WHERE c.resync_since IS NOT NULL GROUP BY c.resync_since)
SELECT c.table_id, CASE WHEN c.fills THEN c.live_after_lsn ELSE coalesce(r.due_lsn, c.live_after_lsn) END, c.fills
  FROM complete c LEFT JOIN resyncs r USING (resync_since)
 WHERE c.fills OR r.unfinished IS NOT TRUE
$$;
