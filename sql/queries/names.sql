-- Names that commands print or complete (mirror_pump/ops/reads: engine_snippets.py, reader_roles.py, query.py, statement_errors.py; mirror_pump/cli/arguments/completion.py).

-- name: relations
-- A table and its partitions.
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM modak.mirror_tree(%s::bigint::oid) r
  JOIN pg_class c ON c.oid = r.relation JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1;

-- name: lake_tables
-- Those below a location come first; only that of a mirrored table if it is named. table_id is NULL for others.
SELECT i.table_namespace, i.table_name, i.metadata_location, t.table_id
  FROM modak.iceberg_tables i
  LEFT JOIN (modak.tables t JOIN modak.mirror_tables m USING (table_id))
    ON (t.schema_name, m.lake_table) = (i.table_namespace, i.table_name)
 WHERE i.catalog_name = 'lake' AND i.iceberg_type IS DISTINCT FROM 'VIEW'
   AND (%(table_id)s::bigint IS NULL OR t.table_id = %(table_id)s::bigint)
 ORDER BY coalesce(starts_with(i.metadata_location, %(root)s), false) DESC, 1, 2
 LIMIT 1;

-- name: tables
SELECT t.table_id, t.schema_name, t.table_name FROM modak.mirror_tables m JOIN modak.tables t USING (table_id);

-- name: readable
-- Tables that this role can query now: what readers see of them is complete, and it may read the heap where that has a part.
SELECT t.schema_name, t.table_name
  FROM modak.tables t JOIN modak.cutline c USING (table_id)
 WHERE CASE WHEN t.mode = 'tiered' OR t.heap_retention_lag IS NOT NULL
            THEN EXISTS (SELECT FROM pg_class r
                          WHERE r.oid = t.table_id::oid AND has_table_privilege(r.oid, 'SELECT')
                            AND has_schema_privilege(r.relnamespace, 'USAGE'))
            ELSE c.replicated_lsn IS NOT NULL END
 ORDER BY 1, 2;

-- name: mirrored
SELECT schema_name, table_name, quote_ident(schema_name) || '.' || quote_ident(table_name) AS name,
       quote_ident(table_name) AS without_schema
  FROM modak.tables ORDER BY 3;

-- name: others
SELECT n.nspname AS schema_name, c.relname AS table_name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name,
       quote_ident(c.relname) AS without_schema
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'modak')
   -- Nor those of other mirrors' catalogs.
   AND n.oid <> ALL (ARRAY(SELECT k.relnamespace FROM pg_class k
                            WHERE k.relname = 'mirror_migrations' AND starts_with(k.relnamespace::regnamespace::text || '_', 'modak_')))
 ORDER BY 3;

-- name: kept_moments
SELECT name FROM modak.moments ORDER BY 1;
