-- Corrections of rows below the cut-line: read to be folded into the lake, and cleared afterwards
-- (mirror_pump/source/retention/corrections.py).

-- name: backlog
-- Tables with rows below the cut-line that readers see: the number of corrections that are not folded (counted up to the
-- number that makes a fold due), the age of the oldest in seconds, whether folded ones have to be cleared, and whether some are
-- below the retention line.
SELECT t.table_id,
       (SELECT count(*) FROM (SELECT FROM modak.delta d WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL
                                AND (d.tier_key < c.retention_line) IS NOT TRUE LIMIT %(rows)s) AS due) AS rows,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(d.updated_at))::float8
                   FROM modak.delta d WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL
                    AND (d.tier_key < c.retention_line) IS NOT TRUE), 0) AS age,
       EXISTS (SELECT FROM modak.delta d WHERE d.table_id = t.table_id AND d.folded_sequence IS NOT NULL) AS folded,
       EXISTS (SELECT FROM modak.delta d WHERE d.table_id = t.table_id AND d.tier_key < c.retention_line) AS expired
  FROM modak.tables t
  JOIN modak.cutline c USING (table_id)
  JOIN modak.mirror_tables m USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state = 'live' AND m.staged_location IS NULL
   AND EXISTS (SELECT FROM modak.delta d WHERE d.table_id = t.table_id)
 ORDER BY t.table_id;

-- name: moved
-- Tables whose cut-line has moved, of which the lake alone may have rows.
SELECT m.table_id FROM modak.mirror_tables m JOIN modak.cutline c USING (table_id)
 WHERE m.slot_name = %(slot)s AND c.tier_key_hi > -9223372036854775808 AND modak.moved_cut(m.table_id) IS NOT NULL
 ORDER BY m.table_id;

-- name: relation
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(table_id)s::bigint::oid;

-- name: columns
-- With the type's name under the present search_path, and whether the type is json, jsonb, or a domain over one of them.
SELECT a.attnum, a.attname AS name, a.atttypid::bigint AS type_oid, a.atttypmod AS type_modifier,
       format_type(a.atttypid, a.atttypmod) AS type_sql,
       EXISTS (WITH RECURSIVE base(oid) AS (
                   SELECT a.atttypid
                   UNION ALL SELECT t.typbasetype FROM base JOIN pg_type t USING (oid) WHERE t.typtype = 'd')
               SELECT FROM base WHERE oid IN ('json'::regtype, 'jsonb'::regtype)) AS is_json
  FROM pg_attribute a
 WHERE a.attrelid = %(table_id)s::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped
   AND (a.attgenerated = '' OR a.attgenerated = 's' AND modak.mirror_sends_generated(a.attrelid));

-- name: seam
SELECT c.lake_snapshot_id, i.metadata_location
  FROM modak.cutline c JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id)
  JOIN modak.lake_pointers i USING (table_id)
 WHERE c.table_id = %(table_id)s;

-- name: lock_pins
-- Once granted, all pins are visible, and none is added before the end of the transaction. A pinning transaction holds a
-- conflicting lock from before it reads the published snapshot until it ends.
LOCK TABLE modak.read_pin_rows IN SHARE MODE NOWAIT;

-- name: pins
-- The snapshots that readers have pinned, and whether one of these may read the delta more than once. A reader that has pinned
-- the highest cut-line there is reads the lake alone, and needs no correction.
SELECT coalesce(array_agg(DISTINCT pinned_lake_snapshot_id), '{}'), coalesce(bool_or(NOT in_one_snapshot), false)
  FROM modak.read_pin_rows
 WHERE table_id = %(table_id)s AND expires_at > now() AND pinned_tier_key_hi < 9223372036854775807;

-- name: clear
DELETE FROM modak.delta
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM modak.delta
                          WHERE table_id = %(table_id)s AND folded_sequence <= %(sequence)s
                          LIMIT %(rows)s FOR UPDATE SKIP LOCKED));

-- name: purge_expired
SELECT modak.purge_expired(%(table_id)s);

-- name: journal_purge
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
VALUES (gen_random_uuid(), %(table_id)s, 'retention', 'done', %(details)s);

-- name: journal
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, lake_snapshot_id, details)
VALUES (gen_random_uuid(), %(table_id)s, 'compaction', 'done', %(snapshot_id)s, %(details)s);
