-- Names that commands print or complete (mirror_pump/ops: readers.py, connect.py; mirror_pump/cli/arguments/completion.py).

-- name: relations
-- A table and its partitions.
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM modak.mirror_tree(%s::bigint::oid) r
  JOIN pg_class c ON c.oid = r.relation JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1;

-- name: lake_tables
SELECT table_namespace, table_name FROM modak.iceberg_tables
 WHERE catalog_name = 'lake' AND iceberg_type IS DISTINCT FROM 'VIEW' ORDER BY 1, 2;

-- name: mirrored
SELECT quote_ident(schema_name) || '.' || quote_ident(table_name), quote_ident(table_name),
       coalesce(pg_table_is_visible(to_regclass(quote_ident(schema_name) || '.' || quote_ident(table_name))), false)
  FROM modak.tables ORDER BY 1;

-- name: others
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(c.relname), pg_table_is_visible(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'modak')
 ORDER BY 1;
