-- Following schema changes (mirror_pump/source/relations/change_notes.py).

-- name: triggers
SELECT evtname, evtenabled::text FROM pg_event_trigger
 WHERE evtname IN ('mirror_pump_ddl', 'mirror_pump_drop', 'mirror_pump_rewrite');

-- name: secret
SELECT secret FROM modak.mirror_secret;

-- name: waiting
-- Tables that wait to be described, or were registered before shapes were recorded, and when they were last noted. Leaves out
-- tables that are not published, or not published whole.
SELECT s.table_id, s.noted_at FROM modak.mirror_tables m JOIN modak.mirror_shapes s USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped') AND (m.shape IS NULL OR m.state = 'waiting')
   AND (modak.mirror_has_key(s.shape) OR m.key = '{}')
   AND NOT EXISTS (SELECT FROM modak.mirror_publications n WHERE n.table_id = m.table_id AND NOT n.whole);

-- name: unchanged
-- Locks the table's shape against other notes. Returns no row if one was emitted since.
SELECT FROM modak.mirror_shapes WHERE table_id = %(table_id)s AND noted_at = %(noted_at)s FOR UPDATE;

-- name: note
-- Emits notes for tables that changed without one, and for those that are settled.
SELECT modak.mirror_note(false, %(table_ids)s::bigint[], %(settled)s::bigint[]);

-- name: catalogs
-- A text for the state of all that modak.mirror_shape() reads, which any write changes: a row that is written has another place or
-- another transaction. VACUUM and ANALYZE, which overwrite rows, do not. Leaves out what the server itself brings, and
-- temporary tables.
WITH written (place, xid) AS (
    SELECT c.ctid, c.xmin FROM pg_class c WHERE c.oid >= 16384 AND c.relpersistence <> 't'
    UNION ALL SELECT a.ctid, a.xmin FROM pg_attribute a WHERE a.attrelid >= 16384 AND a.attnum > 0
       AND a.attrelid NOT IN (SELECT c.oid FROM pg_class c WHERE c.relpersistence = 't' AND c.relkind <> 'c')
    UNION ALL SELECT t.ctid, t.xmin FROM pg_type t WHERE t.oid >= 16384
       AND t.typnamespace NOT IN (SELECT n.oid FROM pg_namespace n WHERE n.nspname ~ '^pg_(toast_)?temp_')
    UNION ALL SELECT i.ctid, i.xmin FROM pg_index i WHERE i.indrelid >= 16384
       AND i.indrelid NOT IN (SELECT c.oid FROM pg_class c WHERE c.relpersistence = 't')
    UNION ALL SELECT g.ctid, g.xmin FROM pg_trigger g WHERE g.tgname = 'mirror_pump_truncate'
    UNION ALL SELECT n.ctid, n.xmin FROM pg_namespace n WHERE n.nspname !~ '^pg_(toast_)?temp_'
    UNION ALL SELECT ctid, xmin FROM pg_enum
    UNION ALL SELECT ctid, xmin FROM pg_range
    UNION ALL SELECT ctid, xmin FROM pg_inherits
    UNION ALL SELECT ctid, xmin FROM pg_partitioned_table
    UNION ALL SELECT ctid, xmin FROM pg_event_trigger
    UNION ALL SELECT ctid, xmin FROM pg_publication
    UNION ALL SELECT ctid, xmin FROM pg_auth_members
    UNION ALL SELECT ctid, xmin FROM modak.tables
    UNION ALL SELECT ctid, xmin FROM modak.mirror_shapes)
SELECT concat((SELECT concat(count(*), ' ', sum(hashtextextended(w.xid::text, hashtid(w.place)))) FROM written w), ' ',
              (SELECT sum(hashtextextended(r::text, 0)) FROM pg_roles r), ' ',
              (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()), ' ',
              (SELECT sum(hashtextextended(concat(m.table_id, m.slot_name, m.state IN ('failed', 'dropped')), 0)) FROM modak.mirror_tables m));

-- name: marks
-- For each table of the stream a number that stands for what its own shape is made of: its rows and those of its partitions in
-- the catalogs, and what concerns all tables. `depends`: other relations and types have a part in the shape too, of which the
-- mark says nothing.
WITH RECURSIVE tree (root, relation) AS (
    SELECT m.table_id, m.table_id::oid FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
     WHERE m.slot_name = %(slot)s AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation JOIN pg_class c ON c.oid = i.inhrelid
     WHERE c.relispartition AND NOT i.inhdetachpending),
common AS (
    SELECT concat((SELECT sum(hashtextextended(w.xid::text, hashtid(w.place)))
                     FROM (SELECT n.ctid, n.xmin FROM pg_namespace n WHERE n.nspname !~ '^pg_(toast_)?temp_'
                           UNION ALL SELECT ctid, xmin FROM pg_event_trigger
                           UNION ALL SELECT ctid, xmin FROM pg_publication
                           UNION ALL SELECT ctid, xmin FROM pg_auth_members) AS w (place, xid)), ' ',
                  (SELECT sum(hashtextextended(r::text, 0)) FROM pg_roles r), ' ',
                  (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database())) AS mark),
written (root, place, xid, depends) AS (
    SELECT t.root, c.ctid, c.xmin, c.relispartition AND c.oid = t.root::oid FROM tree t JOIN pg_class c ON c.oid = t.relation
    UNION ALL SELECT t.root, a.ctid, a.xmin, a.atttypid >= 16384 FROM tree t JOIN pg_attribute a ON a.attrelid = t.relation AND a.attnum > 0
    UNION ALL SELECT t.root, i.ctid, i.xmin, false FROM tree t JOIN pg_index i ON i.indrelid = t.relation
    UNION ALL SELECT t.root, g.ctid, g.xmin, false FROM tree t JOIN pg_trigger g ON g.tgrelid = t.relation AND g.tgname = 'mirror_pump_truncate'
    UNION ALL SELECT t.root, i.ctid, i.xmin, false FROM tree t JOIN pg_inherits i ON i.inhrelid = t.relation
    UNION ALL SELECT t.root, i.ctid, i.xmin, false FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
    UNION ALL SELECT t.root, p.ctid, p.xmin, false FROM tree t JOIN pg_partitioned_table p ON p.partrelid = t.relation
    UNION ALL SELECT t.root, r.ctid, r.xmin, false FROM tree t JOIN modak.tables r ON r.table_id = t.root AND t.relation = t.root::oid
    UNION ALL SELECT t.root, s.ctid, s.xmin, false FROM tree t JOIN modak.mirror_shapes s ON s.table_id = t.root AND t.relation = t.root::oid)
SELECT w.root AS table_id,
       hashtextextended(concat(count(*), ' ', sum(hashtextextended(w.xid::text, hashtid(w.place))), ' ', min(common.mark)), 0) AS mark,
       bool_or(w.depends) AS depends
  FROM written w CROSS JOIN common GROUP BY w.root;

-- name: differing
-- Those of the tables for which `note` would emit a note. Reads only. Tiered tables have none in the stream.
SELECT s.table_id FROM modak.mirror_shapes s JOIN modak.mirror_tables m USING (table_id) JOIN modak.tables t USING (table_id)
 WHERE s.table_id = ANY (%(table_ids)s) AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
   AND s.shape IS DISTINCT FROM modak.mirror_shape(s.table_id::oid);

-- name: tiered_differing
-- Tiered tables that are not as the mirror knows them, apart from their partitions, which their retention follows.
SELECT m.table_id
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 CROSS JOIN LATERAL (SELECT modak.mirror_shape(m.table_id::oid) AS shape, ARRAY['leaves', 'attached', 'partition_key'] AS apart) n
 WHERE m.slot_name = %(slot)s AND t.mode = 'tiered' AND m.state NOT IN ('failed', 'dropped')
   AND m.shape - n.apart IS DISTINCT FROM n.shape - n.apart;

-- name: observed
-- What was last noted of a table, and the values that older rows have in columns that were added.
SELECT s.shape, modak.mirror_kept_missing(s.table_id, s.shape) FROM modak.mirror_shapes s WHERE s.table_id = %(table_id)s;

-- name: record
INSERT INTO modak.mirror_shapes (table_id, shape)
SELECT table_id, shape FROM modak.mirror_tables WHERE table_id = %(table_id)s;

-- name: present
SELECT modak.mirror_shape(%(table_id)s::bigint::oid);

-- name: unwatched
-- Partitioned tables with partitions for which modak.mirror_watch() has not created the trigger yet.
SELECT m.table_id FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN pg_class c ON c.oid = m.table_id::oid
 WHERE c.relkind = 'p' AND t.mode = 'mirrored'
   AND EXISTS (SELECT FROM modak.mirror_tree(c.oid) r
                 JOIN pg_class l ON l.oid = r.relation
                WHERE l.relkind = 'r' AND pg_has_role(l.relowner, 'USAGE')
                  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = l.oid
                                     AND t.tgname = 'mirror_pump_truncate' AND t.tgenabled = 'A'));

-- name: watch
SELECT modak.mirror_watch(%(table_id)s::bigint::oid);

-- name: unwatch
SELECT modak.mirror_unwatch(%(table_id)s::bigint::oid);

-- name: lockers
-- Open transactions that may have written to the table or altered it: they still hold their locks.
SELECT DISTINCT l.virtualtransaction FROM pg_locks l
 WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND l.relation IN (SELECT relation FROM modak.mirror_tree(%(table_id)s::bigint::oid));
