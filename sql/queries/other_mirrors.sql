-- What other mirrors of the same database have (mirror_pump/source/catalog/other_mirrors.py). `{schema}` is the schema of one's catalog.

-- name: catalogs
-- Any role that may create schemas can create one of such a name. To plan a statement about its tables may run its owner's code
-- (functions of indexes), so only those of trusted roles are read: superusers, the owners of the database and of this mirror, and
-- the role of this connection.
SELECT n.nspname::text AS schema, r.rolname::text AS owner,
       (r.rolsuper OR r.rolname = current_user OR r.oid = (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database())
        OR r.oid = (SELECT m.nspowner FROM pg_namespace m WHERE m.nspname = 'modak'))
       AND NOT EXISTS (SELECT FROM pg_class t WHERE t.relnamespace = n.oid AND t.relowner <> n.nspowner AND t.relkind <> 'i') AS is_trusted
  FROM pg_namespace n
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'mirror_migrations'
  JOIN pg_roles r ON r.oid = n.nspowner
 WHERE starts_with(n.nspname || '_', 'modak_') AND n.nspname <> 'modak' ORDER BY 1;

-- name: streams
SELECT slot_name, publication_name FROM {schema}.mirror_slots WHERE database_name = current_database();

-- name: warehouses
SELECT profile_name, warehouse FROM {schema}.storage_profiles WHERE warehouse <> '';

-- name: moves_rows
-- Whether the mirror moves rows of a table from the heap into its lake.
SELECT EXISTS (SELECT FROM {schema}.mirror_tables WHERE table_id = %(table_id)s AND retention IS NOT NULL);
