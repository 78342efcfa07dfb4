-- What other mirrors of the same database have (mirror_pump/source/catalog/other_mirrors.py). `{schema}` is the schema of one's catalog.

-- name: catalogs
SELECT n.nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'mirror_migrations'
 WHERE starts_with(n.nspname || '_', 'modak_') AND n.nspname <> 'modak' ORDER BY 1;

-- name: streams
SELECT slot_name, publication_name FROM {schema}.mirror_slots WHERE database_name = current_database();

-- name: warehouses
SELECT profile_name, warehouse FROM {schema}.storage_profiles WHERE warehouse <> '';

-- name: moves_rows
-- Whether the mirror moves rows of a table from the heap into its lake.
SELECT EXISTS (SELECT FROM {schema}.mirror_tables WHERE table_id = %(table_id)s AND retention IS NOT NULL);
