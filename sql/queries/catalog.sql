-- How schema modak is brought up to date (mirror_pump/source/catalog/catalog_schema.py, catalog_functions.py).

-- name: catalogs
-- Whether the mirror's own catalog exists, and whether the seam catalog does.
SELECT to_regclass('modak.mirror_migrations') IS NOT NULL, to_regclass('modak.schema_meta') IS NOT NULL;

-- name: is_used
-- Whether the schema has anything but default privileges.
SELECT EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace('modak')
                  AND classid <> 'pg_default_acl'::regclass);

-- name: versions
SELECT (SELECT coalesce(max(version), 0) FROM modak.mirror_migrations),
       (SELECT coalesce(max(version), 0) FROM modak.schema_meta);

-- name: create_migrations
-- The table in which migrations are recorded, so it is created before the first of them.
CREATE TABLE IF NOT EXISTS modak.mirror_migrations (
    version     int         PRIMARY KEY,
    name        text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE modak.mirror_migrations IS 'The migrations of mirror-pump that this database has had';

-- name: save_settings
SELECT current_setting('check_function_bodies'), current_setting('search_path');

-- name: use_settings
-- Function bodies are not checked, so that the files may refer to each other in any order. With this search_path, objects
-- print alike in every session.
SELECT set_config('check_function_bodies', 'off', true), set_config('search_path', 'pg_catalog, pg_temp', true);

-- name: restore_settings
SELECT set_config('check_function_bodies', %s, true), set_config('search_path', %s, true);

-- name: recorded
SELECT file, checksum, objects, program FROM modak.mirror_functions;

-- name: record
INSERT INTO modak.mirror_functions (file, checksum, objects, program)
VALUES (%(file)s, %(checksum)s, %(objects)s, %(program)s)
ON CONFLICT (file) DO UPDATE
   SET checksum = excluded.checksum, objects = excluded.objects, program = excluded.program, applied_at = now();

-- name: forget
DELETE FROM modak.mirror_functions WHERE file = %(file)s;

-- name: objects
SELECT 'FUNCTION ' || p.oid::regprocedure::text, p.ctid::text
  FROM pg_proc p WHERE p.pronamespace = 'modak'::regnamespace
UNION ALL
SELECT 'VIEW ' || c.oid::regclass::text, r.ctid::text
  FROM pg_class c JOIN pg_rewrite r ON r.ev_class = c.oid
 WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind = 'v';

-- name: grants
-- Privileges of other roles on an object, as GRANT statements. Whether PUBLIC may call a function is up to its file.
SELECT format('GRANT %%s ON %%s TO %%s%%s', a.privilege_type, o.target, coalesce(quote_ident(r.rolname), 'PUBLIC'),
              CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
  FROM (SELECT 'FUNCTION ' || p.oid::regprocedure::text AS name, 'FUNCTION ' || p.oid::regprocedure::text AS target,
               p.proacl AS acl, p.proowner AS owner, false AS is_view
          FROM pg_proc p WHERE p.pronamespace = 'modak'::regnamespace
        UNION ALL
        SELECT 'VIEW ' || c.oid::regclass::text, 'TABLE ' || c.oid::regclass::text, c.relacl, c.relowner, true
          FROM pg_class c WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind = 'v') o
 CROSS JOIN LATERAL aclexplode(o.acl) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE o.name = %(object)s AND a.grantee <> o.owner AND (r.oid IS NOT NULL OR o.is_view);

-- name: other_owner
-- The owner of schema modak, if that is another role than this one, which may act for it.
SELECT r.rolname::text FROM pg_namespace m JOIN pg_roles r ON r.oid = m.nspowner
 WHERE m.nspname = 'modak' AND r.rolname <> current_user AND pg_has_role(r.oid, 'MEMBER');
