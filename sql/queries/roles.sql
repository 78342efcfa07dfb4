-- What roles are to the mirror, and what they lack (mirror_pump/source/catalog/mirror_roles.py).

-- name: facts
-- The role of this connection. Everything but its name and attributes is NULL or false without schema modak. Whether it
-- `streams` is what the query `facts` of server.sql says.
SELECT r.rolname::text AS role, r.rolsuper AS superuser, owner.rolname::text AS admin,
       coalesce(pg_has_role(m.nspowner, 'USAGE'), false) AS is_admin,
       coalesce(has_schema_privilege(m.oid, 'USAGE'), false) AS uses,
       coalesce(has_table_privilege(secret.oid, 'SELECT'), false) AS reads_secret,
       %(streams)s::boolean AS streams,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_sessions
  FROM pg_roles r
  LEFT JOIN pg_namespace m ON m.nspname = 'modak'
  LEFT JOIN pg_roles owner ON owner.oid = m.nspowner
  LEFT JOIN pg_class secret ON secret.relnamespace = m.oid AND secret.relname = 'mirror_secret'
 WHERE r.rolname = current_user;

-- name: lacking
-- Which of these privileges on relations of schema modak the role does not have.
SELECT p.privilege || ' on ' || c.oid::regclass
  FROM unnest(%(relations)s::text[], %(privileges)s::text[]) AS p(relation, privilege)
  JOIN pg_class c ON c.relnamespace = 'modak'::regnamespace AND c.relname = p.relation
 WHERE NOT has_table_privilege(c.oid, p.privilege) ORDER BY 1;

-- name: lacking_everywhere
-- What sql/roles/pump.sql grants on all tables, sequences and functions.
SELECT 'SELECT on ' || c.oid::regclass FROM pg_class c
 WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind IN ('r', 'v') AND NOT has_table_privilege(c.oid, 'SELECT')
UNION ALL
SELECT 'USAGE on ' || c.oid::regclass FROM pg_class c
 WHERE CASE WHEN c.relnamespace = 'modak'::regnamespace AND c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
UNION ALL
SELECT 'EXECUTE on ' || p.oid::regprocedure FROM pg_proc p
 WHERE p.pronamespace = 'modak'::regnamespace AND NOT has_function_privilege(p.oid, 'EXECUTE')
   AND p.proname !~ '^owner_[0-9]+$'
 ORDER BY 1;

-- name: retained
SELECT c.oid::regclass::text AS table_name, owner.rolname::text AS owner, pg_has_role(owner.oid, 'USAGE') AS owned,
       n.nspname::text AS schema_name, has_schema_privilege(owner.oid, n.oid, 'CREATE') AS creates
  FROM modak.mirror_tables m
  JOIN pg_class c ON c.oid = m.table_id::oid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_roles owner ON owner.oid = c.relowner
 WHERE m.retention IS NOT NULL AND m.state NOT IN ('failed', 'dropped') ORDER BY 1;

-- name: owners
-- Of mirrored tables and their partitions: those who are neither superusers nor the owner of schema modak.
SELECT DISTINCT owner.rolname::text
  FROM modak.mirror_tables m
 CROSS JOIN LATERAL modak.mirror_tree(m.table_id::oid) tree
  JOIN pg_class c ON c.oid = tree.relation
  JOIN pg_roles owner ON owner.oid = c.relowner
 WHERE m.state <> 'dropped' AND NOT owner.rolsuper
   AND owner.oid <> (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'modak') ORDER BY 1;
