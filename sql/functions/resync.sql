-- Tables that are copied again together (`mirror-pump resync`): when each table that is copied or filled may go live.

-- The tables of a slot whose copy or fill is complete up to a position, and the frontier that this position needs. With
-- `fills`, files with rows below the cut-line are filled from there on; otherwise the table goes live. The tables of a resync
-- go live together: none is listed before the last of them is complete, and all have the position of the last one. A table
-- that waits for its owner holds up no other.
CREATE OR REPLACE FUNCTION modak.mirror_due(slot text) RETURNS TABLE (table_id bigint, due_lsn bigint, fills boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH under_way AS (
    SELECT m.table_id, m.resync_since, m.live_after_lsn,
           m.state = 'copying' AND m.columns @? '$[*] ? (@.initial != null)' AND modak.moved_cut(m.table_id) IS NOT NULL AS fills
      FROM modak.mirror_tables m LEFT JOIN modak.mirror_shapes s USING (table_id)
     WHERE m.slot_name = slot AND m.state IN ('waiting', 'copying', 'filling')
       AND NOT (m.state = 'waiting' AND (m.error IS NOT NULL OR NOT (modak.mirror_has_key(s.shape) OR m.key = '{}')))),
resyncs AS (
    SELECT resync_since, max(live_after_lsn) AS due_lsn, bool_or(fills OR live_after_lsn IS NULL) AS unfinished
      FROM under_way WHERE resync_since IS NOT NULL GROUP BY resync_since)
SELECT u.table_id, CASE WHEN u.fills THEN u.live_after_lsn ELSE coalesce(r.due_lsn, u.live_after_lsn) END, u.fills
  FROM under_way u LEFT JOIN resyncs r USING (resync_since)
 WHERE u.live_after_lsn IS NOT NULL AND (u.fills OR r.unfinished IS NOT TRUE)
$$;
