-- What other mirrors of the same database have (mirror_pump/source/catalog/other_mirrors.py). `{schema}` is the schema of one's catalog.

-- name: catalogs
-- Any role that may create schemas can create one of such a name, and a statement about its relations would run that role's code:
-- views, functions of indexes, as soon as it is planned. So those count whose three tables are tables of trusted roles, which alone
-- could exchange them: superusers, the owners of the database and of this mirror, and the role of this connection.
WITH trusted AS (
    SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
    UNION SELECT datdba FROM pg_database WHERE datname = current_database()
    UNION SELECT nspowner FROM pg_namespace WHERE nspname = 'modak'
)
SELECT n.nspname::text AS schema, n.nspowner IN (SELECT oid FROM trusted) AND 3 = (
           SELECT count(*) FROM pg_class c
            WHERE c.relnamespace = n.oid AND c.relname IN ('mirror_slots', 'mirror_tables', 'storage_profiles')
              AND c.relkind = 'r' AND c.relowner IN (SELECT oid FROM trusted)
              -- Types that roles made have casts and operators of theirs.
              AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384)) AS is_trusted
  FROM pg_namespace n JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'mirror_migrations'
 WHERE starts_with(n.nspname || '_', 'modak_') AND n.nspname <> 'modak' ORDER BY 1;

-- name: existing
-- Which of the names of a slot and a publication are there already.
SELECT 'slot' FROM pg_replication_slots WHERE slot_name = %(slot)s
UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = %(publication)s;

-- name: streams
SELECT slot_name, publication_name FROM {schema}.mirror_slots WHERE database_name = current_database();

-- name: warehouses
SELECT profile_name, warehouse FROM {schema}.storage_profiles WHERE warehouse <> '';

-- name: moves_rows
-- Whether the mirror moves rows of a table from the heap into its lake.
SELECT EXISTS (SELECT FROM {schema}.mirror_tables WHERE table_id = %(table_id)s AND retention IS NOT NULL);
