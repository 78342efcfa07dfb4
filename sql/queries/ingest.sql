-- `mirror-pump ingest` (mirror_pump/ops/ingest): its journal, what it has to know of a table, and the locks of its commit.

-- name: begin
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
VALUES (%(op_id)s, %(table_id)s, 'ingest', 'writing', %(details)s);

-- name: writing
-- Notes a file before it is written, so that it is found if this process dies.
UPDATE modak.op_log
   SET details = jsonb_set(details, '{files}', details -> 'files' || to_jsonb(%(location)s::text)), updated_at = now()
 WHERE op_id = %(op_id)s;

-- name: done
UPDATE modak.op_log
   SET phase = 'done', lake_snapshot_id = %(snapshot_id)s, details = %(details)s, updated_at = now()
 WHERE op_id = %(op_id)s AND phase = 'writing';

-- name: undone
UPDATE modak.op_log SET phase = 'undone', updated_at = now() WHERE op_id = %(op_id)s AND phase = 'writing';

-- name: unfinished
-- The table's ingests that have neither landed nor been undone, with the files that they noted.
SELECT op_id::text, coalesce(details -> 'files', '[]')
  FROM modak.op_log
 WHERE table_id = %(table_id)s AND op_kind = 'ingest' AND phase = 'writing' AND op_id <> %(op_id)s;

-- name: try_lock
SELECT pg_try_advisory_lock(%(key)s);

-- name: lock
SELECT pg_advisory_lock(%(key)s);

-- name: unlock
SELECT pg_advisory_unlock(%(key)s);

-- name: phase
-- Waits for the end of the transaction that may have made it `done`.
SELECT phase FROM modak.op_log WHERE op_id = %(op_id)s FOR UPDATE;

-- name: columns
-- The table's columns in their order. `expression`: the default, or what a generated column is computed from. `checked`: a
-- CHECK constraint or a stored generated column refers to it. `plain`: an ordinary type of PostgreSQL itself.
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
       CASE WHEN a.attidentity <> '' THEN pg_get_serial_sequence(%(relation)s, a.attname) END AS sequence
  FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;

-- name: relation
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(table_id)s::bigint::oid;

-- name: partitions
-- The tier values of the partitions that the table has below its cut-line. Rows that belong there are written to the heap.
SELECT p.lo, p.hi FROM modak.tier_partitions(%(table_id)s::bigint::oid) p
 WHERE NOT p.is_default AND p.lo < %(cut)s ORDER BY p.lo;

-- name: begin_cutline
-- Why the cut-line cannot get its first value; NULL if it has. The published snapshot follows in publish_snapshot.
SELECT modak.begin_cutline(%(table_id)s, %(cut)s);

-- name: lowest
-- The lower end of the lowest partition, as a tier value; NULL if there is none but a DEFAULT partition.
SELECT min(p.lo) FROM modak.tier_partitions(%(table_id)s::bigint::oid) p WHERE NOT p.is_default;

-- name: limits
-- Below which tier value rows have expired, and whether the heap has every row of the table.
SELECT c.retention_line, t.keep_heap
  FROM modak.cutline c JOIN modak.tables t USING (table_id) WHERE c.table_id = %(table_id)s;

-- name: pins
-- A reader that may read heap and corrections later than the snapshot that it has pinned; NULL if there is none.
SELECT modak.pin_below(%(table_id)s, 9223372036854775807, false);

-- name: lock_pins
-- As `pins`, and no reader can pin until the end of the transaction.
SELECT modak.lock_pins(%(table_id)s, 9223372036854775807);
