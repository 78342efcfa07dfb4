-- Heap retention (mirror_pump/source/retention/partitions.py, pipeline/retention/partition_shedding.py, and the publish
-- that moves the cut-line).

-- name: tables
SELECT m.table_id FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.retention IS NOT NULL AND m.state <> 'dropped'
   AND (%(table_ids)s::bigint[] IS NULL OR m.table_id = ANY (%(table_ids)s))
 ORDER BY m.table_id;

-- name: premade_tables
-- Tables that get partitions ahead of their newest key.
SELECT m.table_id FROM modak.mirror_tables m
 WHERE m.slot_name = %(slot)s AND m.state = 'live' AND m.retention IS NOT NULL
   AND (m.retention ->> 'premake')::int > 0;

-- name: next_key
-- The last value of the sequence that a column's default takes its values from; NULL for other columns. Keys of INSERTs that
-- failed are in no row, but the next ones are above them.
SELECT CASE WHEN has_sequence_privilege(s.relation, 'SELECT, USAGE') THEN pg_sequence_last_value(s.relation) END
  FROM (SELECT pg_get_serial_sequence(%(table)s, %(column)s)::regclass AS relation) s;

-- name: choices
SELECT m.retention, m.state = 'live' AS live, modak.lag_of(t.mode, t.heap_retention_lag, m.retention) AS lag, t.keep_heap,
       t.lake_retention_lag AS lake_lag, c.tier_key_hi AS cut, s.applied_lsn AS applied,
       coalesce(m.retention ->> 'not_seen', m.retention ->> 'not_made') AS not_made,
       modak.present_reason(m.retention ->> 'not_expired') AS not_expired
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN modak.cutline c USING (table_id)
  JOIN modak.mirror_slots s ON s.slot_name = m.slot_name
 WHERE m.table_id = %(table_id)s;

-- name: partitions
SELECT p.partition_id, p.relation_id, p.tier_key_lo AS lo, p.tier_key_hi AS hi, p.state, p.sealed_lsn, p.truncated,
       modak.present_reason(p.reason) AS reason, p.attempts, n.nspname AS schema_name, c.relname AS relation_name, a.lo AS present_lo, a.hi AS present_hi,
       modak.retained_by(c.oid, 'capture') AS captured, c.oid <> ALL (ARRAY(SELECT modak.unfollowed(%(table_id)s))) AS corrected,
       coalesce(p.disproved_at > now() - interval '1 day', false) AS disproved,
       extract(epoch FROM clock_timestamp() - p.proven_at)::float8 AS proven_for, k.chunks_total, k.chunks_done,
       p.proven_as IS DISTINCT FROM modak.watch_mark(c.oid) AS altered
  FROM modak.partitions p
 CROSS JOIN LATERAL (SELECT count(*) AS chunks_total, count(k.done_at) AS chunks_done FROM modak.partition_chunks k
                      WHERE k.table_id = p.table_id AND k.partition_id = p.partition_id) k
  LEFT JOIN modak.tier_partitions(%(table_id)s::bigint::oid) a ON a.relation = p.relation_id::oid AND NOT a.is_default
  LEFT JOIN pg_class c ON c.oid = a.relation
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.table_id = %(table_id)s AND p.state <> 'dropped'
 ORDER BY p.tier_key_hi, p.tier_key_lo;

-- name: sizes
-- The partitions' rows, as estimated by the server (below 0: unknown), and their bytes.
SELECT a.relation::bigint AS relation_id, c.reltuples::float8 AS rows, pg_total_relation_size(c.oid) AS bytes
  FROM modak.tier_partitions(%(table_id)s::bigint::oid) a JOIN pg_class c ON c.oid = a.relation;

-- name: attached
SELECT a.relation::bigint AS relation_id, n.nspname AS schema_name, c.relname AS relation_name, a.lo, a.hi, a.is_default,
       c.relkind = 'r' AS is_table, modak.retained_by(c.oid, 'default') AS routes
  FROM modak.tier_partitions(%(table_id)s::bigint::oid) a
  JOIN pg_class c ON c.oid = a.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY a.hi, a.lo;

-- name: other_owner
-- The owner of a table, unless that is the role of this connection, and whether the owner may create tables in its schema.
SELECT r.rolname::text, has_schema_privilege(r.oid, c.relnamespace, 'CREATE')
  FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
 WHERE c.oid = to_regclass(%(table)s) AND r.rolname <> current_user;

-- name: partition_keys
-- How tables are partitioned: strategy, number of columns, the column (NULL: an expression), its type, depth of the tree.
SELECT p.partrelid::bigint AS table_id, p.partstrat::text AS strategy, p.partnatts::int AS columns, a.attname AS column,
       coalesce(bt.oid, t.oid)::bigint AS type_oid, a.attnotnull AS not_null,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = p.partrelid AND c.relkind = 'p' AND c.relispartition) AS nested
  FROM pg_partitioned_table p
  LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = (p.partattrs::int2[])[0] AND a.attnum > 0
  LEFT JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type bt ON bt.oid = t.typbasetype AND t.typtype = 'd'
 WHERE p.partrelid = ANY (%(table_ids)s::bigint[]::oid[]);

-- name: registered
-- Keeps the table's registration until the end of the transaction. No row: it has ended, or is another one.
SELECT FROM modak.mirror_tables WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s FOR KEY SHARE;

-- name: enter
SELECT modak.enter_partition(%(table_id)s, %(relation_id)s, %(name)s, %(lo)s, %(hi)s, 'hot', NULL);

-- name: take_late
SELECT modak.take_late(%(table_id)s, a.relation, a.lo, a.hi)
  FROM modak.tier_partitions(%(table_id)s::bigint::oid) a WHERE a.relation = %(relation_id)s::bigint::oid;

-- name: release
SELECT modak.release_partition(%(table_id)s, %(partition_id)s);

-- name: unwatched
SELECT modak.unwatched(%(table_id)s, %(partition_id)s);

-- name: correct_late
SELECT modak.correct_late(%(table_id)s, %(partition_id)s, %(most_bytes)s);

-- name: gone
-- Records, once each time, that the owner dropped or detached a partition. Below the cut-line nothing else follows. Above it,
-- the cut-line passes the partition in its turn, when the frontier has passed everything that was written to it while it was
-- attached.
UPDATE modak.partitions
   SET state = CASE WHEN state IN ('tiering', 'tiered') THEN 'dropped' ELSE state END,
       sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint, updated_at = now(),
       gone_as = modak.gone_mark(relation_id::oid),
       reason = 'dropped or detached by its owner: what the lake holds of it stays'
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s
   AND gone_as IS DISTINCT FROM modak.gone_mark(relation_id::oid);

-- name: replaced
-- A partition that its owner took away, and the cut-line does not have to pass. It has passed another that went from the same place.
-- Or there is another in its place, which is sealed behind everything that was written to this one. Of this one the lake has nothing
-- (tiered), or keeps what it has.
UPDATE modak.partitions p
   SET state = 'dropped', updated_at = now(), gone_as = modak.gone_mark(p.relation_id::oid),
       reason = 'its owner put another partition in its place'
  FROM modak.cutline c
 WHERE p.table_id = %(table_id)s AND p.partition_id = %(partition_id)s AND p.state IN ('hot', 'sealing')
   AND c.table_id = p.table_id
   AND (p.tier_key_hi <= c.tier_key_hi
        OR EXISTS (SELECT FROM modak.tier_partitions(p.table_id::oid) a
                    WHERE NOT a.is_default AND a.lo < p.tier_key_hi AND a.hi >= p.tier_key_hi));

-- name: back
-- A partition that has to be sealed again, since it was detached or its trigger was missing.
UPDATE modak.partitions SET state = 'hot', sealed_lsn = NULL, gone_as = NULL, reason = %(reason)s, updated_at = now(),
       tier_key_lo = %(lo)s, tier_key_hi = %(hi)s, proven_as = modak.attachment(relation_id::oid)
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state IN ('hot', 'sealing');

-- name: crowded
-- The same for a partition with too many captured changes. The limit grows, so that the cut-line passes it eventually.
UPDATE modak.partitions p
   SET state = 'hot', sealed_lsn = NULL, capture_limit = 2 * capture_limit, updated_at = now()
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state = 'sealing' AND modak.captured_too_many(p);

-- name: make_room
-- The same for a tiered partition, which stays sealed: to seal it again would mean to copy it again, during which as much is
-- captured.
UPDATE modak.partitions p SET capture_limit = 2 * capture_limit
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state = 'sealing' AND modak.captured_too_many(p);

-- name: seal
SELECT modak.seal(%(table_id)s::bigint, %(partition_id)s::text);

-- name: unseal
SELECT modak.unseal(%(table_id)s::bigint, %(partition_id)s::text);

-- name: sealed
-- A position behind every change that was not captured: the sealing transaction has ended, so any later position serves.
UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint
 WHERE table_id = %(table_id)s AND state = 'sealing' AND sealed_lsn IS NULL;

-- name: triggers
SELECT modak.retain_triggers(%(table_id)s::bigint::oid, %(relation_id)s::bigint::oid, %(partition_id)s, %(kind)s);

-- name: proven
-- Updates no row if the partition has changed since the proof.
UPDATE modak.partitions
   SET state = 'tiered', proven_at = now(), proven_as = %(watched_as)s, updated_at = now(), reason = NULL, attempts = 0
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state = 'tiering'
   AND modak.watch_mark(relation_id::oid) = %(watched_as)s;

-- name: unproven
-- A partition that has to be proven, for the first time or again.
UPDATE modak.partitions SET state = 'tiering', proven_at = NULL
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state IN ('tiering', 'tiered');

-- name: drop
SELECT modak.drop_proven(%(table_id)s::bigint, %(partition_id)s::text, %(detach)s::boolean);

-- name: reader_in_the_way
-- The reader because of which the cut-line cannot pass a partition now. Takes no lock: modak.advance() decides under its locks.
SELECT coalesce(modak.pin_below(%(table_id)s, %(cut)s, false), modak.pinning() || ' is putting a pin in place');

-- name: waits
UPDATE modak.partitions SET reason = %(reason)s
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND reason IS DISTINCT FROM %(reason)s;

-- name: reason
UPDATE modak.partitions SET reason = %(reason)s, attempts = attempts + 1
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state = %(state)s;

-- name: disproved
UPDATE modak.partitions SET reason = %(reason)s, attempts = attempts + 1, disproved_at = now()
 WHERE table_id = %(table_id)s AND partition_id = %(partition_id)s AND state = 'tiering';

-- name: stop
UPDATE modak.mirror_tables SET retention = retention || jsonb_build_object('stopped', %(reason)s::text)
 WHERE table_id = %(table_id)s;

-- name: note
-- Why something of the table's retention does not happen, by its key in mirror_tables.retention; NULL if nothing is in the way.
UPDATE modak.mirror_tables
   SET retention = retention - %(key)s::text || CASE WHEN %(reason)s::text IS NULL THEN '{}'
                                                     ELSE jsonb_build_object(%(key)s::text, %(reason)s::text) END
 WHERE table_id = %(table_id)s AND retention ->> %(key)s IS DISTINCT FROM %(reason)s;

-- name: due_retention_line
SELECT modak.due_retention_line(%(table_id)s);

-- name: written
SELECT relation_id, coalesce(pg_stat_get_tuples_inserted(relation_id::oid) + pg_stat_get_tuples_updated(relation_id::oid), 0)
  FROM unnest(%(relation_ids)s::bigint[]) AS r(relation_id) ORDER BY relation_id;

-- name: resume
WITH again AS (
    UPDATE modak.partitions SET disproved_at = NULL WHERE table_id = ANY (%(table_ids)s) AND disproved_at IS NOT NULL)
UPDATE modak.mirror_tables SET retention = retention - 'stopped' WHERE table_id = ANY (%(table_ids)s) AND retention IS NOT NULL;

-- name: watched
-- The first statement of its transaction: the mark is as of the transaction's snapshot. NULL: it is detached, or without its trigger.
SELECT modak.watch_mark(%(relation_id)s::bigint::oid);

-- name: lake_locations
-- The metadata files of the published snapshot and of the lake table.
SELECT c.lake_props ->> 'metadata_location', i.metadata_location
  FROM modak.cutline c JOIN modak.mirror_tables m USING (table_id) JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE c.table_id = %(table_id)s;

-- name: corrections
SELECT pk, key, difference
  FROM modak.delta_against(%(table_id)s::bigint::oid, %(relation_id)s::bigint::oid, %(lo)s::bigint, %(hi)s::bigint);

-- name: journal
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, lake_snapshot_id, details)
VALUES (gen_random_uuid(), %(table_id)s, %(kind)s, %(phase)s, %(snapshot_id)s, %(details)s::jsonb);

-- name: sweep_pins
-- Expired pins protect nothing. They are kept for an hour, so that `status` can count them; the journal has the number of
-- those removed; those of change feeds go at once. Not those whose row a reader's open transaction has changed.
WITH of_feeds AS (
    DELETE FROM modak.feed_pin_rows
     WHERE pin_id IN (SELECT p.pin_id FROM modak.feed_pin_rows p JOIN modak.change_feeds f USING (feed_id)
                       WHERE f.slot_name = %(slot)s AND p.expires_at <= now()
                         FOR UPDATE OF p SKIP LOCKED)),
swept AS (
    DELETE FROM modak.read_pin_rows
     WHERE pin_id IN (SELECT p.pin_id FROM modak.read_pin_rows p JOIN modak.mirror_tables m USING (table_id)
                       WHERE m.slot_name = %(slot)s AND p.expires_at < now() - interval '1 hour'
                         FOR UPDATE OF p SKIP LOCKED)
    RETURNING table_id)
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)
SELECT gen_random_uuid(), table_id, 'retention', 'done', jsonb_build_object('kind', 'pins expired', 'pins', count(*))
  FROM swept GROUP BY table_id;

-- name: end_pins
-- Pins of readers whose session has ended. A reader that lives on without its session finds that out within 5 minutes, when it
-- renews its pins. The view pg_stat_activity would look up databases and roles as well.
UPDATE modak.read_pin_rows SET expires_at = now() + interval '6 minutes'
 WHERE pin_id IN (SELECT p.pin_id FROM modak.read_pin_rows p JOIN modak.mirror_tables m USING (table_id)
                   WHERE m.slot_name = %(slot)s AND p.expires_at > now() + interval '6 minutes'
                     AND NOT EXISTS (SELECT FROM pg_stat_get_activity(p.ends_with) a WHERE a.pid = p.ends_with) AND p.ends_with IS NOT NULL
                     FOR UPDATE OF p SKIP LOCKED);

-- name: sweep_functions
SELECT modak.sweep_held_functions(%(slot)s);

-- name: prune
DELETE FROM modak.op_log o USING modak.mirror_tables m
 WHERE m.table_id = o.table_id AND m.slot_name = %(slot)s AND o.op_kind IN ('retention', 'tiering')
   AND o.updated_at < now() - interval '30 days';

-- name: capture
-- What chunks of a sealed partition have to be read under: since when its changes are captured, and its heap's file.
SELECT p.captured_after, pg_relation_filenode(p.relation_id::oid)::bigint AS filenode, p.relation_id
  FROM modak.partitions p
 WHERE p.table_id = %(table_id)s AND p.partition_id = %(partition_id)s AND p.state = 'sealing' AND p.sealed_lsn IS NOT NULL;

-- name: chunks
SELECT c.chunk_no, c.captured_after, c.relation_id, c.filenode, c.lo_block, c.hi_block, c.rows, c.files,
       c.done_at IS NOT NULL AS done
  FROM modak.partition_chunks c
 WHERE c.table_id = %(table_id)s AND c.partition_id = %(partition_id)s
 ORDER BY c.chunk_no;

-- name: plan_chunk
INSERT INTO modak.partition_chunks
       (table_id, partition_id, chunk_no, captured_after, relation_id, filenode, lo_block, hi_block)
VALUES (%(table_id)s, %(partition_id)s, %(chunk_no)s, %(captured_after)s, %(relation_id)s, %(filenode)s, %(lo_block)s,
        %(hi_block)s);

-- name: chunk_done
-- Records a chunk's files. From then on sweeps spare them. Not those that a sweep may have taken for orphans before: the lock waits
-- for a sweep that is just being declared.
WITH present AS (
    SELECT swept_before FROM modak.mirror_tables WHERE table_id = %(table_id)s FOR SHARE)
UPDATE modak.partition_chunks c SET done_at = now(), rows = %(rows)s, files = %(files)s
  FROM present m
 WHERE c.table_id = %(table_id)s AND c.partition_id = %(partition_id)s AND c.chunk_no = %(chunk_no)s
   AND c.captured_after = %(captured_after)s AND c.filenode = %(filenode)s AND c.done_at IS NULL
   AND (m.swept_before IS NULL OR m.swept_before < to_timestamp(%(written_since)s));

-- name: forget_chunks
-- Forgets chunks of partitions that were truncated since, or are not sealed any more, and all of one partition. Returns the
-- files, which nothing refers to any more.
DELETE FROM modak.partition_chunks c
 WHERE c.table_id = %(table_id)s
   AND (c.partition_id = %(partition_id)s
        OR NOT EXISTS (SELECT FROM modak.partitions p
                        WHERE p.table_id = c.table_id AND p.partition_id = c.partition_id AND p.state = 'sealing'
                          AND p.captured_after = c.captured_after))
RETURNING ARRAY(SELECT f ->> 'path' FROM jsonb_array_elements(c.files) f);

-- name: forget_captured
-- Removes captured changes of partitions that the cut-line has passed: they came with the files, or have become corrections.
DELETE FROM modak.mirror_captured c
 USING modak.partitions p
 WHERE c.table_id = %(table_id)s AND p.table_id = c.table_id AND p.partition_id = c.partition_id
   AND p.state NOT IN ('hot', 'sealing');

-- name: choose
UPDATE modak.mirror_tables SET retention = coalesce(retention, '{}') || %(retention)s::jsonb WHERE table_id = %(table_id)s;

-- name: lag
-- Of a tiered table the lag is one of its choices (modak.lag_of).
WITH mirrored AS (
    UPDATE modak.tables SET heap_retention_lag = %(lag)s
     WHERE table_id = %(table_id)s AND mode = 'mirrored' AND heap_retention_lag IS NOT NULL)
UPDATE modak.mirror_tables m SET retention = retention || jsonb_build_object('lag', %(lag)s::bigint)
  FROM modak.tables t
 WHERE m.table_id = %(table_id)s AND t.table_id = m.table_id AND t.mode = 'tiered';

-- name: lake_lag
-- NULL: no further row leaves the lake. The retention line stays where it is.
UPDATE modak.tables SET lake_retention_lag = %(lag)s WHERE table_id = %(table_id)s AND mode = 'tiered';

-- name: shed
-- Whether the lake has rows that the heap has not. What a table that keeps its heap corrects, it has itself.
SELECT modak.only_in_lake(%(table_id)s) IS NOT NULL
    OR EXISTS (SELECT FROM modak.partitions WHERE table_id = %(table_id)s AND state = 'dropped')
    OR NOT modak.keeps_heap(%(table_id)s) AND EXISTS (SELECT FROM modak.delta WHERE table_id = %(table_id)s);

-- name: only_in_lake
SELECT modak.only_in_lake(%(table_id)s);

-- name: drop_default
SELECT modak.drop_partition(%(root)s::bigint::oid, %(leaf)s::bigint::oid);
