-- What the mirror records of the server's history (mirror_pump/pipeline/session/history.py).

-- name: pointers
-- The metadata files that the Iceberg catalog names, with the cut-lines that have moved. A table that waits for a new copy
-- counts as live as long as that has staged nothing: a resync must not hide what the next pump looks for.
SELECT m.table_id, t.schema_name, t.table_name, i.metadata_location, modak.moved_cut(m.table_id) AS cut_line
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state <> 'dropped' AND i.metadata_location IS NOT NULL
   AND (m.state NOT IN ('waiting', 'copying', 'filling') OR NOT %(only_live)s
        OR (m.state = 'waiting' AND m.staged_location = i.metadata_location))
 ORDER BY t.schema_name, t.table_name;

-- name: record_timeline
-- A file's time has fractions that the type rounds.
UPDATE modak.mirror_slots
   SET timeline = %(timeline)s,
       accepted_until = greatest(accepted_until, to_timestamp(nullif(%(accepted)s::float8, 0)) + interval '1 ms')
 WHERE slot_name = %(slot)s;

-- name: note_going_back
UPDATE modak.mirror_slots SET went_back_at = clock_timestamp() WHERE slot_name = %(slot)s AND went_back_at IS NULL;

-- name: forget_going_back
UPDATE modak.mirror_slots SET went_back_at = NULL WHERE slot_name = %(slot)s;

-- name: position
-- The catalog's position, the end of the WAL, and the slot's position.
SELECT timeline, applied_lsn AS applied, extract(epoch FROM coalesce(accepted_until, 'epoch'))::float8 AS accepted,
       (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_end,
       coalesce((SELECT (r.confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots r
                  WHERE r.slot_name = s.slot_name), 0) AS acknowledged
  FROM modak.mirror_slots s WHERE slot_name = %(slot)s;
