-- Bringing rows below the cut-line back into the heap (mirror_pump/source/retention/restored_tables.py,
-- mirror_pump/ops/restore/, mirror_pump/engine/restore/). Journal in modak.op_log: one row in phase `restoring`, and one in
-- phase `restored` for each task that is done.

-- name: exclude
-- False if another session is restoring this table. Held until this session ends.
SELECT pg_try_advisory_lock(%(key)s);

-- name: running
SELECT op_id::text AS op_id, details FROM modak.op_log
 WHERE table_id = %(table_id)s AND op_kind = 'retention' AND phase = 'restoring';

-- name: begin
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, lake_snapshot_id, details)
VALUES (%(op_id)s::uuid, %(table_id)s, 'retention', 'restoring', %(snapshot_id)s, %(details)s::jsonb);

-- name: note
UPDATE modak.op_log SET details = details || %(details)s::jsonb, updated_at = now() WHERE op_id = %(op_id)s::uuid;

-- name: ingests
-- Ingests that have brought files into the table's lake.
SELECT op_id::text FROM modak.op_log
 WHERE table_id = %(table_id)s AND op_kind = 'ingest' AND phase = 'done' AND lake_snapshot_id IS NOT NULL ORDER BY 1;

-- name: copied
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
VALUES (%(op_id)s::uuid, %(table_id)s, 'retention', 'restored', %(details)s::jsonb) ON CONFLICT (op_id) DO NOTHING;

-- name: copied_rows
UPDATE modak.op_log SET details = details || jsonb_build_object('rows', %(rows)s::bigint), updated_at = now()
 WHERE op_id = %(op_id)s::uuid;

-- name: done
SELECT op_id::text, coalesce((details ->> 'rows')::bigint, 0) FROM modak.op_log
 WHERE table_id = %(table_id)s AND op_kind = 'retention' AND phase = 'restored';

-- name: forget
DELETE FROM modak.op_log WHERE table_id = %(table_id)s AND op_kind = 'retention' AND phase IN ('restoring', 'restored');

-- name: stop
-- Partitions stay as they are meanwhile. A retention that stopped for another reason keeps that.
UPDATE modak.mirror_tables SET retention = jsonb_build_object('stopped', %(reason)s::text) || retention
 WHERE table_id = %(table_id)s AND retention IS NOT NULL;

-- name: go_on
UPDATE modak.mirror_tables SET retention = retention - 'stopped'
 WHERE table_id = %(table_id)s AND starts_with(retention ->> 'stopped', %(reason)s);

-- name: lock_pins
LOCK TABLE modak.read_pin_rows IN SHARE MODE;

-- name: reader
-- The reader that may still need the corrections, or with `whole` the lake; NULL if there is none.
SELECT modak.pin_below(%(table_id)s, 9223372036854775807, %(whole)s);

-- name: cutline
SELECT tier_key_hi, retention_line FROM modak.cutline WHERE table_id = %(table_id)s;

-- name: shed
-- Partitions that have left, those first that left last: of two with the same rows, the later one counts.
SELECT partition_id, relation_id, tier_key_lo AS lo, tier_key_hi AS hi, gone_as IS NOT NULL AS by_owner,
       (SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = p.relation_id::oid) AS still_there
  FROM modak.partitions p
 WHERE p.table_id = %(table_id)s AND p.state = 'dropped' AND p.tier_key_lo < p.tier_key_hi
 ORDER BY p.updated_at DESC, p.tier_key_lo;

-- name: attached
-- Attached partitions below the cut-line, and whether their proof is still valid.
SELECT p.partition_id, p.relation_id, p.state = 'tiered' AND NOT p.truncated
       AND modak.watch_mark(p.relation_id::oid) IS NOT DISTINCT FROM p.proven_as AS proven,
       modak.watch_mark(p.relation_id::oid) AS watched_as
  FROM modak.partitions p JOIN modak.tier_partitions(%(table_id)s::bigint::oid) a ON a.relation = p.relation_id::oid
       AND (a.lo, a.hi) = (p.tier_key_lo, p.tier_key_hi)
 WHERE p.table_id = %(table_id)s AND p.state IN ('tiering', 'tiered');

-- name: columns
-- The columns of a relation as a partition has to have them.
SELECT a.attnum, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type_sql, a.attgenerated <> '' AS generated,
       t.typcategory = 'A' AS is_array
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attrelid = %(relation_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;

-- name: definition
-- What a partition gets from the table, as one text: columns, constraints and indexes.
SELECT md5(concat_ws(E'\n',
    (SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                                 a.attstorage, a.attcompression, a.attcollation, pg_get_expr(d.adbin, d.adrelid)), E'\n' ORDER BY a.attnum)
       FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
      WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT string_agg(concat_ws(' ', k.conname, k.convalidated, pg_get_constraintdef(k.oid)), E'\n' ORDER BY k.oid)
       FROM pg_constraint k WHERE k.conrelid = %(table_id)s::bigint::oid),
    (SELECT string_agg(pg_get_indexdef(i.indexrelid), E'\n' ORDER BY i.indexrelid)
       FROM pg_index i WHERE i.indrelid = %(table_id)s::bigint::oid)));

-- name: taken
SELECT to_regclass(%(name)s) IS NOT NULL OR to_regtype(%(name)s) IS NOT NULL;

-- name: relation
-- A table that a restore has made, and that is not attached.
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = %(relation_id)s::bigint::oid AND NOT c.relispartition
   AND EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = 'mirror_pump_restored');

-- name: identity
SELECT to_regclass(%(name)s)::oid::bigint, pg_get_partition_constraintdef(to_regclass(%(name)s));

-- name: quiet
-- The mirror's event triggers ignore what this transaction does.
SELECT set_config('modak.watching', secret, true) FROM modak.mirror_secret;

-- name: versions
SELECT pk, version, tier_key FROM modak.delta
 WHERE table_id = %(table_id)s AND tier_key >= %(lo)s::bigint AND tier_key < %(hi)s::bigint;

-- name: key_match
SELECT modak.key_match(%(relation_id)s::bigint::oid, n.keys, 'k')
  FROM modak.key_numbers(%(table_id)s::bigint::oid, %(relation_id)s::bigint::oid) n;

-- name: compare
-- Of the given corrections, those that a relation does not have as they are.
SELECT d.pk, d.difference
  FROM modak.delta_against(%(table_id)s::bigint::oid, %(relation_id)s::bigint::oid, %(lo)s::bigint, %(hi)s::bigint) d
 WHERE d.difference IS NOT NULL AND d.pk = ANY (%(keys)s);
