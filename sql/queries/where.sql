-- What is needed of a table to say where a row of it still is (mirror_pump/ops/where/). Readers may read all of it.

-- name: table
SELECT t.maintenance_policy AS policy, i.metadata_location, c.lake_snapshot_id AS published_snapshot
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = %(table_id)s;

-- name: pins
SELECT pinned_lake_snapshot_id AS snapshot_id, max(expires_at) AS expires_at
  FROM modak.read_pin_rows WHERE table_id = %(table_id)s AND expires_at > now() GROUP BY 1;

-- name: feed_pins
SELECT snapshot_id, max(expires_at) AS expires_at
  FROM modak.feed_pin_rows WHERE feed_id = %(table_id)s AND expires_at > now() GROUP BY 1;

-- name: columns
-- With the type's name, without its modifier and with it: a cast to the latter cuts values off.
SELECT a.attname AS name, format_type(a.atttypid, -1) AS type_sql, format_type(a.atttypid, a.atttypmod) AS whole_type_sql
  FROM pg_attribute a
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attname = ANY (%(names)s) AND a.attnum > 0 AND NOT a.attisdropped;
