-- A reader's side of the seam protocol (mirror_pump/source/catalog/consistent_snapshot.py).

-- name: attributes
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type_sql,
       format('%%I.%%I', n.nspname, c.relname) AS relation
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped;

-- name: heaps
-- The tables whose heap is to be read.
SELECT c.table_id, modak.has_cutline(t.mode, t.heap_retention_lag, c.tier_key_hi)
  FROM modak.cutline c
  JOIN modak.tables t USING (table_id)
 WHERE c.table_id = ANY (%(table_ids)s)
   AND (%(all)s OR modak.has_cutline(t.mode, t.heap_retention_lag, c.tier_key_hi))
 ORDER BY c.table_id;

-- name: leaves
-- The relations that hold rows. Leaves out the partitioned table and its DEFAULT partition, which holds no row under heap
-- retention: adding a partition takes ACCESS EXCLUSIVE on both.
SELECT r.relation::bigint, format('%%I.%%I', n.nspname, c.relname)
  FROM modak.mirror_tree(%(table_id)s::bigint::oid) r
  JOIN pg_class c ON c.oid = r.relation
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE r.is_leaf
   AND NOT (%(has_retention)s AND EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partdefid = r.relation))
 ORDER BY 1;

-- name: rewritten
-- The catalogs are read as of the database snapshot; the function returns the present state.
WITH RECURSIVE tree(relation) AS (
    SELECT %(table_id)s::bigint::oid
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation)
SELECT coalesce(bool_or(c.relkind = 'r' AND pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode), true)
  FROM tree t JOIN pg_class c ON c.oid = t.relation;

-- name: late
SELECT modak.late_partition(%(table_id)s);
