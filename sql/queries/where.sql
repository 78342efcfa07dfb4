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
-- With the type's name, without its modifier and with it: a cast to the latter cuts values off. Of a domain the base type: the
-- domain's checks would run with the caller's rights. So would those of domains within a composite, a range or an array, which no
-- value is cast to (`casts`), and the functions of a view that has the name of a table that is gone.
WITH RECURSIVE reduced(name, type, modifier, depth) AS (
    SELECT a.attname, a.atttypid, a.atttypmod, 0 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE a.attrelid = %(table_id)s::bigint::oid AND c.relkind IN ('r', 'p') AND a.attname = ANY (%(names)s)
       AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.name, t.typbasetype, t.typtypmod, r.depth + 1 FROM reduced r JOIN pg_type t ON t.oid = r.type WHERE t.typtype = 'd')
SELECT DISTINCT ON (r.name)
       r.name, format_type(t.oid, -1) AS type_sql, format_type(t.oid, r.modifier) AS whole_type_sql,
       t.typnamespace = 'pg_catalog'::regnamespace OR t.typtype = 'e' OR t.typtype = 'b' AND t.typcategory <> 'A' AS casts
  FROM reduced r JOIN pg_type t ON t.oid = r.type
 ORDER BY r.name, r.depth DESC;
