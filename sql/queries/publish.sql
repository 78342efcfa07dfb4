-- The statements of the publish transaction (mirror_pump/pipeline/publish/publisher.py), in the order in which they run.

-- name: pin_in_hand
-- Whether a transaction may hold a pin that is not visible yet. Runs first: otherwise the pin might become visible in between
-- and be missed by both queries.
SELECT modak.pinning(interval '15 min') IS NOT NULL;

-- name: registrations
-- The registration of each table: see Registration in mirror_pump/pipeline/operations/registrations.py.
SELECT m.table_id, m.state, m.start_lsn, m.generation, t.schema_name AS namespace, m.lake_table,
       coalesce(m.staged_location, i.metadata_location, '') AS metadata_location, m.staged_location IS NOT NULL AS staged,
       i.metadata_location IS NULL AS lake_table_missing,
       coalesce((SELECT array_agg(DISTINCT p.pinned_lake_snapshot_id)
                   FROM modak.read_pin_rows p
                  WHERE p.table_id = m.table_id AND p.expires_at > now()), '{}') AS pinned,
       ARRAY(SELECT unnest(ARRAY[k.snapshot_id, k.main_snapshot_id])
               FROM modak.moment_tables k WHERE k.table_id = m.table_id) AS moments,
       (SELECT min((o.details ->> 'since_sequence')::bigint)
          FROM modak.op_log o
         WHERE o.table_id = m.table_id AND o.phase = 'rewriting' AND o.updated_at > now() - interval '60 s') AS rewrite_since,
       extract(epoch FROM m.swept_before)::float8 AS swept_before, clock_timestamp() AS read_at,
       t.maintenance_policy AS policy, m.start_sequence AS data_sequence_number, c.lake_snapshot_id AS snapshot_id,
       m.dropped_rows IS NOT NULL AS rows_dropped,
       jsonb_path_query_array(m.columns, '$[*] ? (@.initial != null).field_id') AS initial_fields,
       t.tier_key_col, t.tier_key_type, c.tier_key_hi, c.retention_line, t.mode,
       modak.lag_of(t.mode, t.heap_retention_lag, m.retention) AS lag, i.metadata_location AS pointer, m.lake_head AS head
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.table_id = ANY (%(table_ids)s);

-- name: due_to_go_live
-- Tables that go live at this frontier, or at the present one: their metadata if they were copied again, what readers see,
-- the frontier, and the resync that they belong to. Leaves out tables that are filled first (move_frontier).
SELECT m.table_id, m.staged_location AS staged, i.metadata_location AS pointer,
       greatest(%(frontier)s::bigint, s.applied_lsn) AS frontier, m.resync_since
  FROM modak.mirror_due(%(slot)s) d
  JOIN modak.mirror_tables m USING (table_id)
  JOIN modak.mirror_slots s USING (slot_name)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE NOT d.fills AND d.due_lsn <= greatest(%(frontier)s::bigint, s.applied_lsn);

-- name: stored
-- The locations of all mirrored tables, the metadata file on which the next commit builds, and the one that readers see.
SELECT m.table_id, m.location, coalesce(m.staged_location, i.metadata_location) AS metadata_location,
       i.metadata_location AS readers_location, m.state = 'failed' AS failed
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 ORDER BY m.table_id;

-- name: some_stored
-- As `stored`, of the tables that were registered last.
SELECT m.table_id, m.location, coalesce(m.staged_location, i.metadata_location) AS metadata_location,
       i.metadata_location AS readers_location, m.state = 'failed' AS failed
  FROM (SELECT * FROM modak.mirror_tables ORDER BY table_id DESC LIMIT 5) m
  JOIN modak.tables t USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id);

-- name: moved_by_others
-- Tables whose pointer, or that of their feed, is not where the mirror left it: another engine committed, or dropped or
-- renamed the lake table.
SELECT m.table_id
  FROM modak.mirror_tables m
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped')
   AND i.metadata_location IS DISTINCT FROM m.lake_head ->> 'location'
 UNION
SELECT f.feed_id
  FROM modak.change_feeds f
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
 WHERE f.slot_name = %(slot)s AND f.error IS NULL AND i.metadata_location IS DISTINCT FROM f.head ->> 'location';

-- name: examined
-- These states of lake tables hold the rows of the former ones. Returns the tables of which no other state was recorded
-- meanwhile.
UPDATE modak.mirror_tables m SET lake_head = n.head
  FROM unnest(%(table_ids)s::bigint[], %(start_lsns)s::bigint[], %(formers)s::jsonb[], %(heads)s::jsonb[])
    AS n(table_id, start_lsn, former, head)
 WHERE m.table_id = n.table_id AND m.start_lsn = n.start_lsn AND m.lake_head IS NOT DISTINCT FROM n.former
RETURNING m.table_id;

-- name: left_to_the_lake
-- Tier values above the cut-line at which only the lake may have rows.
SELECT modak.kept_above(%(table_id)s);

-- name: lock_slot
-- Also makes a session that later reads the outcome of this transaction wait for its end. A WAL file's name begins with the
-- timeline, in hexadecimal.
SELECT leader_epoch, applied_lsn, publish_id, streams,
       ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int AS timeline,
       system_identifier = (SELECT c.system_identifier::text FROM pg_control_system() c) AS accepted_server
  FROM modak.mirror_slots WHERE slot_name = %(slot)s FOR UPDATE;

-- name: timeline
-- The timeline of the server, as in lock_slot.
SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int;

-- name: touch_tables
-- Returns the tables whose registration is the one that was staged on. A sweep (mirror_pump/ops/maintenance/sweep.py) may have
-- deleted files that waited too long to be published: data files older than the last sweep's limit, and metadata files that were
-- staged more than 20 minutes ago.
UPDATE modak.mirror_tables m
   SET generation = m.generation + CASE WHEN n.again THEN 1 ELSE 0 END,
       live_after_lsn = CASE WHEN n.again THEN NULL
                             ELSE greatest(m.live_after_lsn,
                                           CASE WHEN m.live_after_lsn IS NOT NULL THEN n.not_live_before END) END,
       start_sequence = coalesce(n.start_sequence, m.start_sequence),
       key_index = coalesce(m.key_index, '{}') || n.key_index,
       lake_head = coalesce(n.head, m.lake_head),
       updated_at = now()
  FROM unnest(%(table_ids)s::bigint[], %(start_lsns)s::bigint[], %(generations)s::bigint[], %(again)s::boolean[],
              %(not_live_before)s::bigint[], %(read_at)s::timestamptz[], %(start_sequences)s::bigint[], %(key_indexes)s::jsonb[],
              %(heads)s::jsonb[])
    AS n(table_id, start_lsn, generation, again, not_live_before, read_at, start_sequence, key_index, head)
 WHERE m.table_id = n.table_id AND m.start_lsn = n.start_lsn AND m.generation = n.generation
   AND m.state NOT IN ('failed', 'dropped')
   AND (m.swept_before IS NULL OR m.swept_before < to_timestamp(%(written_since)s))
   AND clock_timestamp() - n.read_at < interval '20 min'
RETURNING m.table_id;

-- name: move_pointers
-- Moves the pointers of tables as `swap` does (pointers.sql), and publishes their snapshots. Returns the tables whose pointers
-- were where they were read.
WITH next AS (
    SELECT * FROM unnest(%(table_ids)s::bigint[], %(namespaces)s::text[], %(lake_tables)s::text[], %(old)s::text[], %(new)s::text[],
                         %(snapshot_ids)s::bigint[], %(props)s::jsonb[])
               AS n(table_id, namespace, lake_table, old, new, snapshot_id, props)),
moved AS (
    UPDATE modak.iceberg_tables i SET metadata_location = n.new, previous_metadata_location = i.metadata_location
      FROM next n
     WHERE i.catalog_name = 'lake' AND i.table_namespace = n.namespace AND i.table_name = n.lake_table
       AND i.metadata_location = n.old AND (i.iceberg_type = 'TABLE' OR i.iceberg_type IS NULL)
    RETURNING n.table_id)
UPDATE modak.cutline c
   SET lake_snapshot_id = n.snapshot_id, lake_props = n.props, updated_at = now()
  FROM next n JOIN moved USING (table_id)
 WHERE c.table_id = n.table_id
RETURNING c.table_id;

-- name: publish_snapshot
UPDATE modak.cutline
   SET lake_snapshot_id = %(snapshot_id)s, lake_props = %(props)s, updated_at = now()
 WHERE table_id = %(table_id)s;

-- name: advance_cutline
-- Why the cut-line cannot pass the partition; NULL if it has. The published snapshot follows in publish_snapshot.
SELECT modak.advance(%(table_id)s, %(partition_id)s, %(cut)s, %(frontier)s, %(brought)s::bigint[]);

-- name: expire
-- Why the retention line cannot move; NULL if it has. The published snapshot follows in publish_snapshot.
SELECT modak.expire(%(table_id)s, %(line)s);

-- name: purge_expired
SELECT modak.purge_expired(%(table_id)s);

-- name: journal_expiry
INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, lake_snapshot_id, details)
VALUES (gen_random_uuid(), %(table_id)s, 'retention', 'done', %(snapshot_id)s, %(details)s);

-- name: mark_folded
-- Skips corrections locked by other transactions, for which this one must not wait. They are folded again.
UPDATE modak.delta
   SET folded_sequence = %(sequence)s
 WHERE ctid = ANY (ARRAY(
       SELECT d.ctid
         FROM modak.delta d
         JOIN unnest(%(pks)s::text[], %(versions)s::bigint[]) AS folded(pk, version) ON folded.pk = d.pk
        WHERE d.table_id = %(table_id)s AND d.version = folded.version
          FOR UPDATE OF d SKIP LOCKED));

-- name: stage_snapshot
-- The metadata on which the next commit builds while a table is copied again or filled, until swap_in.
UPDATE modak.mirror_tables SET staged_location = %(new)s, staged_snapshot_id = %(snapshot_id)s
 WHERE table_id = %(table_id)s AND staged_location IS NOT DISTINCT FROM %(old)s;

-- name: forget_chunks
WITH gone AS (DELETE FROM modak.copy_chunks WHERE table_id = %(table_id)s)
DELETE FROM modak.copy_progress WHERE table_id = %(table_id)s;

-- name: chunk_done
UPDATE modak.copy_chunks SET done_at = now(), rows = %(rows)s
 WHERE table_id = %(table_id)s AND generation = %(generation)s AND chunk_no = %(chunk_no)s;

-- name: all_chunks_done
-- The rows that were compared belong to no chunk in particular.
WITH report AS (UPDATE modak.mirror_tables SET compared = %(compared)s WHERE table_id = %(table_id)s)
UPDATE modak.copy_chunks SET done_at = now(), rows = CASE WHEN chunk_no = 0 THEN %(rows)s ELSE 0 END
 WHERE table_id = %(table_id)s AND generation = %(generation)s;

-- name: copy_progress
-- After the last chunk the table may go live once the frontier passes the present end of WAL: all that the chunks have read
-- was committed before it.
WITH progress AS (
    UPDATE modak.copy_progress
       SET chunks_done = (SELECT count(*) FROM modak.copy_chunks
                           WHERE table_id = %(table_id)s AND generation = %(generation)s AND done_at IS NOT NULL),
           updated_at = now()
     WHERE table_id = %(table_id)s)
UPDATE modak.mirror_tables
   SET live_after_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint
 WHERE table_id = %(table_id)s AND state = 'copying' AND live_after_lsn IS NULL
   AND NOT EXISTS (SELECT FROM modak.copy_chunks
                    WHERE table_id = %(table_id)s AND generation = %(generation)s AND done_at IS NULL);

-- name: fail
UPDATE modak.mirror_tables SET state = %(state)s, error = %(error)s, updated_at = now()
 WHERE table_id = %(table_id)s AND start_lsn = %(start_lsn)s AND state = ANY (%(former)s);

-- name: move_frontier
-- Also returns the tables that are filled next: those that were copied again from the cut-line on, and whose rows below it may
-- lack the values of new columns. Files must not be exchanged before that, since the copy adds files to the same table.
WITH moved AS (
    UPDATE modak.mirror_slots
       SET applied_lsn = %(frontier)s, publish_id = %(publish_id)s, applied_at = now(),
           last_error = CASE WHEN %(frontier)s::bigint > applied_lsn THEN NULL ELSE last_error END,
           applied_commit_time = CASE WHEN %(commit_time)s::float8 > 0 THEN to_timestamp(%(commit_time)s)
                                      ELSE applied_commit_time END
     WHERE slot_name = %(slot)s)
UPDATE modak.mirror_tables
   SET state = %(state)s, live_after_lsn = NULL, updated_at = now()
 WHERE slot_name = %(slot)s AND state IN ('waiting', 'copying', 'filling') AND state = ANY (%(former)s)
   AND live_after_lsn <= %(frontier)s AND columns @? '$[*] ? (@.initial != null)' AND modak.moved_cut(table_id) IS NOT NULL
RETURNING table_id;

-- name: swap_in
-- A table that was copied again shows its new content in the publish that makes it live. Moves the pointer if it is where it
-- was read. The published snapshot of a table with heap retention does not change, since nothing below the cut-line was
-- copied (modak.moved_cut() says when rows may be below the cut-line). For a filled table publish_snapshot sets it. Tables
-- that have become due since the publish was staged go live with a later one.
WITH due AS (
    SELECT m.table_id, t.schema_name, m.lake_table, m.staged_snapshot_id, s.seen, s.location, s.head,
           modak.has_cutline(t.mode, t.heap_retention_lag, c.tier_key_hi) AS has_retention
      FROM modak.mirror_due(%(slot)s) d
      JOIN modak.mirror_tables m USING (table_id) JOIN modak.tables t USING (table_id) JOIN modak.cutline c USING (table_id)
      LEFT JOIN unnest(%(table_ids)s::bigint[], %(staged)s::text[], %(seen)s::text[], %(locations)s::text[],
                       %(heads)s::jsonb[])
        AS s(table_id, staged, seen, location, head) ON s.table_id = m.table_id AND s.staged = m.staged_location
     WHERE NOT d.fills AND d.due_lsn <= %(frontier)s AND m.table_id = ANY (%(table_ids)s)
       AND m.staged_location IS NOT NULL),
pointer AS (
    UPDATE modak.iceberg_tables i
       SET previous_metadata_location = i.metadata_location, metadata_location = d.location
      FROM due d
     WHERE i.catalog_name = 'lake' AND i.table_namespace = d.schema_name AND i.table_name = d.lake_table
       AND i.metadata_location = d.seen
    RETURNING d.table_id),
published AS (
    UPDATE modak.cutline c
       SET lake_snapshot_id = d.staged_snapshot_id, updated_at = now(),
           lake_props = jsonb_build_object('metadata_location', d.location,
                                           'snapshot_id', d.staged_snapshot_id::text)
      FROM due d WHERE c.table_id = d.table_id AND NOT d.has_retention),
shown AS (
    UPDATE modak.mirror_tables m SET staged_location = NULL, staged_snapshot_id = NULL, lake_head = d.head
      FROM due d WHERE m.table_id = d.table_id)
SELECT p.table_id IS NOT NULL FROM due d LEFT JOIN pointer p USING (table_id);

-- name: go_live
-- Those of the tables that are due. Each has a snapshot in the lake that says so (mirror_pump/pipeline/publish/staging.py).
WITH live AS (
    UPDATE modak.mirror_tables
       SET state = %(state)s, dropped_rows = NULL, resync_since = NULL, resync_gap = false, updated_at = now()
     WHERE state = ANY (%(former)s) AND table_id = ANY (%(table_ids)s)
       AND table_id IN (SELECT d.table_id FROM modak.mirror_due(%(slot)s) d
                         WHERE NOT d.fills AND d.due_lsn <= %(frontier)s)
    RETURNING table_id),
done AS (DELETE FROM modak.copy_progress WHERE table_id IN (SELECT table_id FROM live))
SELECT table_id FROM live;

-- name: promise
-- All live tables whose changes come by the stream get the same frontier, idle ones included: a reader of two tables at one
-- frontier sees one point in time.
UPDATE modak.cutline c
   SET replicated_lsn = %(frontier)s, updated_at = now()
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.table_id = c.table_id AND m.slot_name = %(slot)s AND m.state = 'live' AND t.mode = 'mirrored'
   AND c.replicated_lsn IS DISTINCT FROM %(frontier)s;
