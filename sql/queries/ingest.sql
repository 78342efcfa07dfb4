-- `mirror-pump ingest` (mirror_pump/ops/ingest): its journal, what it has to know of a table, and the locks of its commit.

-- name: begin
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
VALUES (%(op_id)s, %(table_id)s, 'ingest', 'writing', %(details)s);

-- name: writing
-- Below which number files may be written, so that they are found if this process dies.
UPDATE modak.op_log
   SET details = jsonb_set(details, '{numbered}', to_jsonb(%(numbered)s::bigint)), updated_at = now()
 WHERE op_id = %(op_id)s;

-- name: done
UPDATE modak.op_log
   SET phase = 'done', lake_snapshot_id = %(snapshot_id)s, details = %(details)s, updated_at = now()
 WHERE op_id = %(op_id)s AND phase = 'writing';

-- name: undone
UPDATE modak.op_log SET phase = 'undone', updated_at = now() WHERE op_id = %(op_id)s AND phase = 'writing';

-- name: unfinished
-- The table's ingests that have neither landed nor been undone, with the files that they may have written.
SELECT op_id::text AS op_id, coalesce(details -> 'files', '[]') AS files, coalesce(details ->> 'prefix', '') AS prefix,
       coalesce((details ->> 'numbered')::int, 0) AS numbered
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
