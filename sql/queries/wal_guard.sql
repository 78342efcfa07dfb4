-- The WAL guard (mirror_pump/pipeline/upkeep/wal_guard.py).

-- name: leads
-- Whether the pump of that epoch still leads, and its error if it keeps failing.
SELECT last_error ->> 'error' AS error, coalesce((last_error ->> 'attempts')::int, 0) AS attempts FROM modak.mirror_slots
 WHERE slot_name = %(slot)s AND leader_epoch = %(epoch)s;

-- name: tables
-- The tables that may fail, and the rows that PostgreSQL has counted as written to each, with its partitions.
SELECT m.table_id, t.schema_name, t.table_name, m.location,
       (SELECT coalesce(sum(pg_stat_get_tuples_inserted(r.relation) + pg_stat_get_tuples_updated(r.relation)
                            + pg_stat_get_tuples_deleted(r.relation)), 0)::bigint
          FROM modak.mirror_tree(m.table_id::oid) r) AS written
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.slot_name = %(slot)s AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
 ORDER BY m.table_id;
