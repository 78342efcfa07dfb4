-- name: columns
-- `kind` is how a value that is not text is written: a JSON document, an array, a UUID, bytes, or anything else.
WITH RECURSIVE reduced(attnum, type, base, category) AS (
    SELECT a.attnum, t.oid, t.typbasetype, t.typcategory FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attnum, t.oid, t.typbasetype, t.typcategory FROM reduced r JOIN pg_type t ON t.oid = r.base)
SELECT a.attname AS name,
       format_type(a.atttypid, a.atttypmod) AS type_sql,
       coalesce(i.key -> 'key' ? a.attname::text, false) AS in_key,
       a.attgenerated <> '' AS generated,
       a.attidentity = 'a' AS always,
       CASE WHEN r.type IN ('json'::regtype, 'jsonb'::regtype) THEN 'json' WHEN r.category = 'A' THEN 'array'
            WHEN r.type = 'uuid'::regtype THEN 'uuid' WHEN r.type = 'bytea'::regtype THEN 'bytes' ELSE 'other' END AS kind
  FROM pg_attribute a
  JOIN reduced r ON r.attnum = a.attnum AND r.base = 0
 CROSS JOIN modak.mirror_identity(%(table_id)s::bigint::oid) AS i(key)
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;

-- name: bounds
SELECT b.tier_column AS tier_column, b.tier_type AS tier_type, b.cut AS cut, b.retention_line AS retention_line
  FROM modak.load_bounds(%(table_id)s::bigint::oid::regclass) b;

-- name: sweep_labels
-- A label that is gone may be used again: nobody is told any more that its load was committed.
DELETE FROM modak.load_labels l USING modak.tables t, modak.mirror_tables m
 WHERE t.table_id = l.table_id AND m.table_id = l.table_id AND m.slot_name = %(slot)s AND l.state <> 'staged'
   AND l.updated_at < now() - coalesce((t.maintenance_policy ->> 'load_label_days')::float8, %(days)s) * interval '1 day';

-- name: prune
DELETE FROM modak.op_log o USING modak.mirror_tables m
 WHERE m.table_id = o.table_id AND m.slot_name = %(slot)s AND o.op_kind = 'load'
   AND o.updated_at < now() - interval '30 days';
