-- Tables by pattern (mirror_pump/source/relations/matched_tables.py).

-- name: candidates
-- What patterns can mean: no partitions, which are mirrored through their root, and no temporary tables. The size is the server's
-- estimate, without a lock.
WITH RECURSIVE heaps AS (
    SELECT c.oid AS root, c.oid AS relation FROM pg_class c WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
     UNION ALL
    SELECT h.root, i.inhrelid FROM heaps h
      JOIN pg_inherits i ON i.inhparent = h.relation
      JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT c.oid::bigint AS table_id, n.nspname AS schema_name, c.relname AS relation_name, c.relkind = 'f' AS is_foreign,
       c.relpersistence = 'u' AS is_unlogged, e.extname AS extension
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'e'
  LEFT JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
  LEFT JOIN (SELECT h.root, sum(greatest(l.relpages, 0)) AS pages FROM heaps h JOIN pg_class l ON l.oid = h.relation GROUP BY 1) s
       ON s.root = c.oid
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> ALL (ARRAY['information_schema', 'modak']) AND NOT starts_with(n.nspname, 'pg_')
   -- Nor those of other mirrors' catalogs.
   AND n.oid <> ALL (ARRAY(SELECT k.relnamespace FROM pg_class k
                            WHERE k.relname = 'mirror_migrations' AND starts_with(k.relnamespace::regnamespace::text || '_', 'modak_')))
 ORDER BY s.pages NULLS FIRST, 1, 2;
