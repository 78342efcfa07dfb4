-- Shapes: everything about a mirrored table that decides what its rows and changes mean, as one JSON document.

-- A partitioned table's whole tree, or the table itself. Unlike pg_partition_tree() it takes no locks, so neither a user's
-- command nor the mirror waits for another relation. Most tables are one relation: planned for a thousand, as functions are by
-- default, all that joins it would read whole catalogs. OFFSET 0 looks each relation up, for the same reason.
CREATE OR REPLACE FUNCTION modak.mirror_tree(root oid) RETURNS TABLE (relation oid, is_leaf boolean)
LANGUAGE sql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE tree(relation) AS (
    SELECT root
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
     CROSS JOIN LATERAL (SELECT p.relispartition FROM pg_class p WHERE p.oid = i.inhrelid OFFSET 0) c
     WHERE c.relispartition AND NOT i.inhdetachpending)
SELECT t.relation, c.is_leaf FROM tree t
 CROSS JOIN LATERAL (SELECT p.relkind <> 'p' AS is_leaf FROM pg_class p WHERE p.oid = t.relation OFFSET 0) c
$$;

-- The replica identity of a table: its setting, the index, and the columns of the key.
CREATE OR REPLACE FUNCTION modak.mirror_identity(relation oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT jsonb_build_object(
           'setting', c.relreplident::text, 'immediate', coalesce(i.indimmediate, true), 'index', i.indexrelid::bigint,
           'key', ARRAY(SELECT a.attname::text FROM pg_attribute a
                         WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                         ORDER BY a.attnum))
  FROM pg_class c
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
       AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
 WHERE c.oid = relation
$$;

-- Whether a shape has a key that the mirror can use. Without one the table waits until its owner adds one.
CREATE OR REPLACE FUNCTION modak.mirror_has_key(shape jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT shape IS NOT NULL AND jsonb_array_length(shape -> 'identity' -> 'key') > 0
   AND shape -> 'identity' ->> 'setting' <> 'n' AND (shape -> 'identity' ->> 'immediate')::boolean
$$;

-- Whether the event triggers exist and are enabled. Does not detect a session that disables them for itself
-- (event_triggers = off).
CREATE OR REPLACE FUNCTION modak.mirror_events() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) = 3 FROM pg_event_trigger
 WHERE evtname IN ('mirror_pump_ddl', 'mirror_pump_drop', 'mirror_pump_rewrite') AND evtenabled = 'A'
$$;

-- Whether the mirror has a table's stored generated columns. They are in the stream from 18 on, if the publication says so. Those
-- of a tiered table are read from its partitions.
CREATE OR REPLACE FUNCTION modak.mirror_sends_generated(relation oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM modak.tables t LEFT JOIN pg_publication p ON p.pubname = t.publication_name
                WHERE t.table_id IN (relation::bigint, pg_partition_root(relation)::oid::bigint)
                  AND (t.mode = 'tiered' OR to_jsonb(p) ->> 'pubgencols' = 's'))
$$;

-- Of a shape, what only partitioned tables have.
CREATE OR REPLACE FUNCTION modak.mirror_partitioned(root oid, tree oid[]) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT jsonb_build_object(
    'partition_key', (SELECT to_jsonb(p.partattrs::int2[]) FROM pg_partitioned_table p
                       WHERE p.partrelid = root AND p.partstrat IN ('r', 'l') AND p.partnatts = 1 AND p.partexprs IS NULL
                         AND EXISTS (SELECT FROM pg_opclass o WHERE o.oid = p.partclass[0] AND o.opcdefault)
                         AND NOT EXISTS (SELECT FROM pg_collation l
                                          WHERE l.oid = p.partcollation[0] AND NOT l.collisdeterministic)
                         AND getdatabaseencoding() = 'UTF8' AND version() ~ ' (x86_64|aarch64|arm64|powerpc64le|riscv64)-'),
    'attached', (SELECT jsonb_object_agg(i.inhrelid::text, i.xmin::text)
                   FROM pg_inherits i WHERE i.inhrelid = ANY (tree) AND i.inhrelid <> root))
$$;

-- Of a shape: labels of the enums and attributes of the composite types of which its columns are made, by type. NULL without any.
CREATE OR REPLACE FUNCTION modak.mirror_types(relation oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE used(type) AS (
    SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT inner_types.type
      FROM used u
      CROSS JOIN LATERAL (SELECT * FROM pg_type p WHERE p.oid = u.type OFFSET 0) t
      CROSS JOIN LATERAL (
          SELECT t.typbasetype AS type
          UNION ALL SELECT t.typelem
          UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
          UNION ALL SELECT a.atttypid FROM pg_attribute a
                     WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) inner_types
     WHERE inner_types.type <> 0)
SELECT jsonb_object_agg(t.oid::text, CASE t.typtype
           WHEN 'e' THEN (SELECT jsonb_object_agg(e.oid::text, e.enumlabel) FROM pg_enum e WHERE e.enumtypid = t.oid)
           ELSE (SELECT jsonb_object_agg(a.attnum::text, a.atttypid::bigint) FROM pg_attribute a
                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END)
  FROM used u CROSS JOIN LATERAL (SELECT * FROM pg_type p WHERE p.oid = u.type OFFSET 0) t
 WHERE t.typtype IN ('e', 'c')
$$;

-- Everything about a table that determines the meaning of its rows and changes. NULL for a dropped table. `owned`: the owner of
-- schema modak may publish it. The pump may be another role, and its notes must not differ from those of event triggers.
-- Of columns:
--   filled      existing rows may have a value in it without having been rewritten. For a partitioned table this is taken
--               from its partitions' attributes, since its own do not show it.
--   altered     the transaction that wrote the attribute last, and its privileges, which are stored with it. ALTER TABLE with
--               USING to a type that the column has already leaves no other trace while event triggers are off. VACUUM FULL
--               leaves it alone, except for attributes with a missing value.
--   generated   it is left out of the stream because it is generated.
--   computed    Postgres computes it, whether it is in the stream or not.
-- Of partitions:
--   file        its file; only if no event trigger reports rewrites of it, or no trigger reports a TRUNCATE.
--   bound       determines, together with the table's `partition_key`, which rows it has, if its bounds tell that exactly.
--               As the server's node tree, since pg_get_expr() would lock the partition to print the bound.
--   attached    the transaction that attached it last, for the same reason as `altered`.
-- In parts, which a session plans when it first needs them: as one statement it took longer to be planned than to run. OFFSET 0
-- looks each type up: a join would read all of pg_type, which has two rows for each table of the database.
CREATE OR REPLACE FUNCTION modak.mirror_shape(relation oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    all_events boolean := modak.mirror_events();
    identity jsonb := modak.mirror_identity(relation);
    tree oid[] := ARRAY[relation];
    kind text;
    is_partition boolean;
    with_missing name[];
    unproven int2[];
    has_types boolean;
    columns jsonb;
    leaves jsonb;
    shape jsonb;
BEGIN
    SELECT c.relkind, c.relispartition, jsonb_build_object(
               'schema', n.nspname, 'name', c.relname, 'kind', c.relkind::text, 'persistence', c.relpersistence::text,
               'owned', pg_has_role((SELECT m.nspowner FROM pg_namespace m WHERE m.nspname = 'modak'), c.relowner, 'USAGE'),
               'row_security', row_security_active(c.oid), 'identity', identity,
               'partition_of', NULL, 'partition_key', NULL, 'attached', NULL, 'types', NULL)
      INTO kind, is_partition, shape
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = mirror_shape.relation;
    IF shape IS NULL THEN
        RETURN NULL;
    END IF;
    IF kind = 'p' THEN
        tree := ARRAY(SELECT r.relation FROM modak.mirror_tree(mirror_shape.relation) r);
        shape := shape || modak.mirror_partitioned(mirror_shape.relation, tree);
    END IF;
    IF is_partition THEN
        shape := shape || jsonb_build_object('partition_of', (
            SELECT jsonb_build_array(n.nspname, r.relname) FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
             WHERE r.oid = pg_partition_root(mirror_shape.relation)));
    END IF;
    with_missing := ARRAY(SELECT DISTINCT a.attname FROM pg_attribute a WHERE a.attrelid = ANY (tree) AND a.atthasmissing);
    unproven := ARRAY(SELECT unnest(v.conkey) FROM pg_constraint v
                       WHERE v.conrelid = mirror_shape.relation AND v.contype = 'n' AND NOT v.convalidated);
    SELECT bool_or(t.oid >= 16384 OR t.typtype <> 'b'
                   OR t.typelem <> 0 AND (SELECT e.typtype <> 'b' FROM pg_type e WHERE e.oid = t.typelem)),
           jsonb_agg(jsonb_build_object(
               'attnum', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
               'sql', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull AND a.attnum <> ALL (unproven),
               'generated', CASE a.attgenerated WHEN 'v' THEN true WHEN 's' THEN NOT modak.mirror_sends_generated(a.attrelid)
                                                ELSE false END,
               'computed', a.attgenerated <> '',
               'altered', CASE WHEN all_events AND NOT a.atthasmissing THEN jsonb_build_array(a.xmin::text, a.attacl::text) END,
               'filled', a.atthasdef OR a.attidentity <> '' OR a.attname = ANY (with_missing)) ORDER BY a.attnum)
      INTO has_types, columns
      FROM pg_attribute a CROSS JOIN LATERAL (SELECT p.oid, p.typtype, p.typelem FROM pg_type p WHERE p.oid = a.atttypid OFFSET 0) t
     WHERE a.attrelid = mirror_shape.relation AND a.attnum > 0 AND NOT a.attisdropped;
    SELECT jsonb_agg(jsonb_build_object(
               'id', l.oid::bigint, 'schema', n.nspname, 'name', l.relname, 'kind', l.relkind::text,
               'persistence', l.relpersistence::text,
               'identity', CASE l.oid WHEN mirror_shape.relation THEN identity ELSE modak.mirror_identity(l.oid) END,
               'bound', CASE WHEN l.relispartition AND length(l.relpartbound::text) < 4000
                              AND EXISTS (SELECT FROM pg_inherits i
                                           WHERE i.inhrelid = l.oid AND i.inhparent = mirror_shape.relation)
                        THEN l.relpartbound::text END,
               'row_security', row_security_active(l.oid), 'readable', has_table_privilege(l.oid, 'SELECT'),
               'file', CASE WHEN NOT all_events
                              OR l.oid <> mirror_shape.relation AND l.relkind = 'r' AND NOT EXISTS (
                                 SELECT FROM pg_trigger t WHERE t.tgrelid = l.oid
                                    AND t.tgname = 'mirror_pump_truncate' AND t.tgenabled = 'A')
                       THEN pg_relation_filenode(l.oid)::bigint END) ORDER BY l.oid)
      INTO leaves
      FROM pg_class l JOIN pg_namespace n ON n.oid = l.relnamespace WHERE l.oid = ANY (tree) AND l.relkind <> 'p';
    IF has_types THEN
        shape := shape || jsonb_build_object('types', modak.mirror_types(mirror_shape.relation));
    END IF;
    RETURN shape || jsonb_build_object('columns', columns, 'leaves', leaves, 'inherits', EXISTS (
        SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
         WHERE mirror_shape.relation IN (i.inhrelid, i.inhparent) AND NOT child.relispartition AND child.relkind IN ('r', 'f')));
END $$;

-- Names of the generated columns of a shape that are not mirrored.
CREATE OR REPLACE FUNCTION modak.mirror_left_out(shape jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT ARRAY(SELECT c ->> 'name' FROM jsonb_array_elements(coalesce(nullif(shape -> 'columns', 'null'), '[]')) c
              WHERE (c ->> 'generated')::boolean ORDER BY (c ->> 'attnum')::int)
$$;

-- A shape without the marks that a dump and a restore change, as pg_upgrade does it: the transactions that wrote attributes and
-- attachments, and the places of tokens in bounds.
CREATE OR REPLACE FUNCTION modak.mirror_shape_content(shape jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT shape || jsonb_build_object(
    'columns', (SELECT jsonb_agg(c.value || jsonb_build_object('altered', jsonb_build_array(jsonb_typeof(c.value -> 'altered'),
                                                                                           c.value -> 'altered' -> 1))
                                 ORDER BY c.ordinality)
                  FROM jsonb_array_elements(nullif(shape -> 'columns', 'null')) WITH ORDINALITY AS c),
    'attached', ARRAY(SELECT a FROM jsonb_object_keys(nullif(shape -> 'attached', 'null')) a ORDER BY a),
    'leaves', regexp_replace(shape ->> 'leaves', ':location -?[0-9]+', '', 'g'))
$$;

-- Whether those marks of a table were written before a transaction began that holds back the catalogs (the catalog_xmin of a
-- slot).
CREATE OR REPLACE FUNCTION modak.mirror_shape_is_older(root oid, holder xid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = root AND a.attnum > 0 AND age(a.xmin) <= age(holder))
   AND NOT EXISTS (SELECT FROM modak.mirror_tree(root) r JOIN pg_inherits i ON i.inhrelid = r.relation
                    WHERE r.relation <> root AND age(i.xmin) <= age(holder))
$$;
