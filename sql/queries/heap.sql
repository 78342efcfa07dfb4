-- Tables in the heap, from PostgreSQL's own catalogs (mirror_pump/source/heap).

-- name: leaves
-- The relations that hold a table's rows. Not by pg_partition_tree(), which would lock every partition, the DEFAULT one
-- too, until the caller's transaction ends: no partition could be added during a read. pg_class is read in the caller's snapshot, and
-- pg_relation_filenode() looks at what is there now.
WITH RECURSIVE tree(relation) AS (
    SELECT %(oid)s::bigint::oid
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation JOIN pg_class p ON p.oid = i.inhrelid
     WHERE p.relispartition AND NOT i.inhdetachpending)
SELECT c.oid::bigint AS relation_id, n.nspname AS schema, c.relname AS name, pg_relation_filenode(c.oid)::bigint AS filenode,
       c.relfilenode::bigint AS snapshot_filenode,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint AS blocks,
       current_setting('block_size')::bigint AS block_bytes
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.oid IN (SELECT relation FROM tree)
 ORDER BY c.oid;

-- name: columns
SELECT attnum, attname AS name, atttypid::bigint AS type_oid, atttypmod AS type_modifier FROM pg_attribute
 WHERE attrelid = %(oid)s::bigint::oid AND attnum > 0 AND NOT attisdropped;

-- name: relation
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s::bigint::oid;

-- name: snapshot
-- The first transaction ID that a new snapshot has not seen assigned, and those before it that are still open.
SELECT pg_snapshot_xmax(s)::text::bigint, ARRAY(SELECT pg_snapshot_xip(s)::text::bigint) FROM pg_current_snapshot() s;

-- name: key_match
-- The condition that row t of a table has the key of row k.
SELECT modak.key_match(%(oid)s::bigint::oid, %(numbers)s::int[], 'k');
