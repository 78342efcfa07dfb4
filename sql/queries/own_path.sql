-- The search_path that the role's own sessions have (mirror_pump/source/relations/own_path.py).

-- name: present
SELECT current_setting('search_path');

-- name: path
-- `given`: what the connection string sets, which is strongest. Then follow settings of the role in this database, of the role, and of
-- the database. NULL: the server's, and whether this role may read its files.
SELECT coalesce(%(given)s::text, (
       SELECT substr(s.setting, length('search_path=') + 1)
         FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS s(setting)
        WHERE d.setdatabase IN (0, (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))
          AND d.setrole IN (0, (SELECT r.oid FROM pg_roles r WHERE r.rolname = session_user))
          AND starts_with(s.setting, 'search_path=')
        ORDER BY d.setrole = 0, d.setdatabase = 0 LIMIT 1)) AS path,
       has_function_privilege('pg_show_all_file_settings()', 'EXECUTE') AS reads_files;

-- name: path_of_server
-- Of postgresql.conf and the files that it includes.
SELECT f.setting FROM pg_show_all_file_settings() f WHERE f.name = 'search_path' AND f.applied;

-- name: use
-- For the transaction.
SELECT pg_catalog.set_config('search_path', %(path)s, true);

-- name: relation
-- Runs under the role's own path.
SELECT pg_catalog.to_regclass(%(name)s::pg_catalog.text)::pg_catalog.oid::pg_catalog.int8;

-- name: path_schemas
-- Runs under the role's own path. With pg_catalog, where the path does not have it.
SELECT pg_catalog.current_schemas(true)::pg_catalog.text[];

-- name: found
-- The schema in which each name without one is found first, along `schemas`.
SELECT DISTINCT ON (c.relname) c.relname, n.nspname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = ANY (%(path_schemas)s) AND c.relname = ANY (%(names)s)
 ORDER BY c.relname, array_position(%(path_schemas)s::name[], n.nspname);
