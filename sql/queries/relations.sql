-- Descriptions of relations, from PostgreSQL's own catalogs (mirror_pump/source/relations/relations.py).

-- name: named
SELECT c.oid::bigint AS table_id, n.nspname AS schema_name, c.relname AS relation_name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = %(oid)s::bigint::oid;

-- name: readable
-- Tables that a misspelled name may mean, of those that the role may read: at most as many as are compared in a moment.
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND NOT starts_with(n.nspname, 'pg_') AND n.nspname NOT IN ('information_schema', 'modak')
   -- Nor those of other mirrors' catalogs.
   AND n.oid <> ALL (ARRAY(SELECT k.relnamespace FROM pg_class k
                            WHERE k.relname = 'mirror_migrations' AND starts_with(k.relnamespace::regnamespace::text || '_', 'modak_')))
   AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1, 2 LIMIT 10000;

-- name: relation
-- `publisher`: the role that has to own the table, since it owns the publication too: the owner of schema modak, and before
-- `init` the role of this connection. The pump may be another role.
SELECT c.oid::bigint AS table_id, n.nspname AS schema_name, c.relname AS relation_name, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, rn.nspname AS root_schema, r.relname AS root_name,
       c.relkind IN ('r', 'f') AND NOT c.relispartition AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
       OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                   WHERE i.inhparent = c.oid AND NOT child.relispartition AND child.relkind IN ('r', 'f')) AS inherits,
       pg_has_role(publisher.oid, c.relowner, 'USAGE') AS owned, row_security_active(c.oid) AS row_security,
       current_setting('block_size')::int AS block_bytes,
       starts_with(n.nspname || '_', 'modak_') AND EXISTS (
           SELECT FROM pg_class k WHERE k.relnamespace = n.oid AND k.relname = 'mirror_migrations') AS of_catalog,
       ARRAY(SELECT p.pubname::text FROM pg_publication_rel l JOIN pg_publication p ON p.oid = l.prpubid
              WHERE l.prrelid = c.oid AND l.prattrs IS NOT NULL AND (p.pubupdate OR p.pubdelete) ORDER BY 1) AS listed_by,
       current_user::text AS role, publisher.rolname::text AS publisher, pg_get_userbyid(c.relowner)::text AS owner
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_roles publisher ON publisher.oid = coalesce((SELECT m.nspowner FROM pg_namespace m WHERE m.nspname = 'modak'),
                                                      (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user))
  LEFT JOIN pg_class r ON r.oid = CASE WHEN c.relispartition THEN pg_partition_root(c.oid) END
  LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE c.oid = ANY (%(oids)s::bigint[]::oid[]);

-- name: leaves
-- What holds the rows of each relation. pg_relation_size is 0 for a relation without storage, and NULL for one that was just
-- dropped; it locks the relation for a moment. Unless it is `measured`, the size is the estimate of the last VACUUM or ANALYZE.
WITH RECURSIVE tree(root, relation) AS (
    SELECT r.oid, r.oid FROM unnest(%(oids)s::bigint[]::oid[]) AS r(oid)
     UNION ALL
    SELECT t.root, i.inhrelid FROM tree t
      JOIN pg_inherits i ON i.inhparent = t.relation AND NOT i.inhdetachpending
      JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT t.root::bigint AS table_id, c.oid::bigint AS relation_id, n.nspname AS schema_name, c.relname AS relation_name,
       c.relkind::text AS kind, c.relpersistence::text AS persistence, coalesce(pg_relation_filenode(c.oid), 0)::bigint AS filenode,
       CASE WHEN %(measured)s THEN coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint
            ELSE greatest(c.relpages, 0) END AS blocks,
       greatest(c.reltuples, 0)::bigint AS estimated_rows, row_security_active(c.oid) AS row_security,
       has_table_privilege(c.oid, 'SELECT') AS readable
  FROM tree t
  JOIN LATERAL (SELECT * FROM pg_class l WHERE l.oid = t.relation OFFSET 0) c ON c.relkind <> 'p'
  JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY t.root, c.oid;

-- name: identities
-- Follows RelationGetIndexList in the server: under `d` and `f` the mirror's key is the primary key, under `i` the chosen
-- index. Only the first indnkeyatts columns count; the INCLUDE columns after them do not. Of tables and their leaf partitions.
SELECT c.oid::bigint AS relation_id, c.relreplident::text AS setting, coalesce(i.indimmediate, true) AS immediate,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
              ORDER BY a.attnum) AS key
  FROM pg_class c
  LEFT JOIN LATERAL (SELECT * FROM pg_index x WHERE x.indrelid = c.oid OFFSET 0) i
    ON i.indisvalid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
 WHERE c.oid = ANY (ARRAY(WITH RECURSIVE tree(relation) AS (
                              SELECT r.oid FROM unnest(%(oids)s::bigint[]::oid[]) AS r(oid)
                               UNION
                              SELECT i.inhrelid FROM tree t
                                JOIN pg_inherits i ON i.inhparent = t.relation AND NOT i.inhdetachpending
                                JOIN pg_class p ON p.oid = i.inhrelid AND p.relispartition)
                          SELECT relation FROM tree));

-- name: columns
-- Existing rows may have NULL under a constraint that is NOT VALID (PostgreSQL 18).
SELECT a.attrelid::bigint AS table_id, a.attnum, a.attname AS name, a.atttypid::bigint AS type_oid,
       a.atttypmod AS type_modifier, format_type(a.atttypid, a.atttypmod) AS type_sql,
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint c
                                     WHERE c.conrelid = a.attrelid AND c.contype = 'n' AND NOT c.convalidated
                                       AND c.conkey = ARRAY[a.attnum]) AS not_null,
       a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT %(stored)s AS left_out
  FROM pg_attribute a
 WHERE a.attrelid = ANY (%(oids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum;

-- name: base_types
-- The modifier of a domain is in the domain (typtypmod), as in getBaseTypeAndTypmod of the server: the attribute has none.
-- A type is an array only if its element names it as its array type, because name, point and int2vector have a typelem
-- too. Arrays whose elements are not separated by commas (box) stay text. OFFSET 0 looks each type up: a join would read all of
-- pg_type, which has two rows for each table of the database.
WITH RECURSIVE reduced(start, oid, modifier, depth) AS (
    SELECT t.oid, t.oid, -1, 0 FROM pg_type t WHERE t.oid = ANY (%(oids)s)
    UNION ALL
    SELECT r.start, t.typbasetype, t.typtypmod, r.depth + 1
      FROM reduced r CROSS JOIN LATERAL (SELECT * FROM pg_type p WHERE p.oid = r.oid OFFSET 0) t WHERE t.typtype = 'd')
SELECT DISTINCT ON (r.start)
       r.start::bigint AS start_oid, t.oid::bigint AS oid, CASE WHEN r.depth > 0 THEN r.modifier END AS domain_modifier,
       coalesce(e.oid, 0)::bigint AS element_oid, coalesce(x.extname || '.' || t.typname, '') AS extension_type
  FROM reduced r
 CROSS JOIN LATERAL (SELECT * FROM pg_type p WHERE p.oid = r.oid OFFSET 0) t
  LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
  LEFT JOIN pg_extension x ON x.oid = d.refobjid
  LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid AND e.typdelim = ','
 ORDER BY r.start, r.depth DESC;

-- name: target_columns
-- What rows are brought into (mirror_pump/source/relations/target_columns.py). `expression`: the default, or what a generated
-- column is computed from. `checked`: a CHECK constraint or a stored generated column refers to it. `kind`: how a value that is
-- not text is written.
WITH RECURSIVE reduced(attnum, type, base, category) AS (
    SELECT a.attnum, t.oid, t.typbasetype, t.typcategory FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attnum, t.oid, t.typbasetype, t.typcategory FROM reduced r JOIN pg_type t ON t.oid = r.base)
SELECT a.attnum, a.attname AS name, a.atttypid::bigint AS type_oid, a.atttypmod AS type_modifier,
       format_type(a.atttypid, a.atttypmod) AS type_sql, a.attnotnull AS not_null, a.attgenerated <> '' AS is_generated,
       a.attidentity::text AS identity, pg_get_expr(d.adbin, d.adrelid) AS expression,
       EXISTS (SELECT FROM pg_constraint c
                WHERE c.conrelid = a.attrelid AND c.contype = 'c' AND a.attnum = ANY (c.conkey))
       OR EXISTS (SELECT FROM pg_attrdef g
                    JOIN pg_attribute ga ON ga.attrelid = g.adrelid AND ga.attnum = g.adnum AND ga.attgenerated <> ''
                    JOIN pg_depend p ON p.classid = 'pg_class'::regclass AND p.objid = a.attrelid AND p.objsubid = ga.attnum
                         AND p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum
                   WHERE g.adrelid = a.attrelid) AS checked,
       CASE WHEN a.attidentity <> ''
            THEN pg_get_serial_sequence(format('%%I.%%I', n.nspname, c.relname), a.attname) END AS sequence,
       coalesce(i.key -> 'key' ? a.attname::text, false) AS in_key,
       CASE WHEN r.type IN ('json'::regtype, 'jsonb'::regtype) THEN 'json' WHEN r.type = 'uuid[]'::regtype THEN 'uuid array'
            WHEN r.category = 'A' THEN 'array' WHEN r.type = 'uuid'::regtype THEN 'uuid'
            WHEN r.type = 'bytea'::regtype THEN 'bytes' ELSE 'other' END AS kind
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN reduced r ON r.attnum = a.attnum AND r.base = 0
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 CROSS JOIN modak.mirror_identity(%(table_id)s::bigint::oid) AS i(key)
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;
