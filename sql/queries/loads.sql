-- name: bounds
SELECT b.tier_column AS tier_column, b.tier_type AS tier_type, b.cut AS cut, b.retention_line AS retention_line
  FROM modak.load_bounds(%(table_id)s::bigint::oid::regclass) b;

-- name: key_match
-- The condition that row `t` of a table has the key of row `s`.
SELECT modak.key_match(%(table_id)s::bigint::oid, ARRAY(
       SELECT a.attnum::int FROM pg_attribute a
        WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attname = ANY (%(key)s) AND NOT a.attisdropped), 's');

-- name: sweep_labels
-- A label that is gone may be used again: no client hears any more that its load was committed.
DELETE FROM modak.load_labels l USING modak.tables t, modak.mirror_tables m
 WHERE t.table_id = l.table_id AND m.table_id = l.table_id AND m.slot_name = %(slot)s AND l.state <> 'staged'
   AND l.updated_at < now() - coalesce((t.maintenance_policy ->> 'load_label_days')::float8, %(days)s) * interval '1 day';

-- name: prune
DELETE FROM modak.op_log o USING modak.mirror_tables m
 WHERE m.table_id = o.table_id AND m.slot_name = %(slot)s AND o.op_kind = 'load'
   AND o.updated_at < now() - interval '30 days';
