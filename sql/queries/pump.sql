-- What the pump reads from the catalog (mirror_pump/pipeline/session/session.py, registration.py).

-- name: copying
-- Whether any table is being copied. Leaves out those that wait until their owner adds a key, or until they are published again.
SELECT EXISTS (
    SELECT FROM modak.mirror_tables m
     WHERE m.slot_name = %(slot)s AND m.state IN ('waiting', 'copying', 'filling')
       AND NOT (m.state = 'waiting' AND (EXISTS (SELECT FROM modak.mirror_shapes s
                                        WHERE s.table_id = m.table_id AND NOT (modak.mirror_has_key(s.shape) OR m.key = '{}'))
                               OR EXISTS (SELECT FROM modak.mirror_publications n WHERE n.table_id = m.table_id AND NOT n.whole))));

-- name: due_to_go_live
-- The frontier at which the next copied or filled table may go live, if all of it is in the lake, or may be filled.
SELECT min(due_lsn) FROM modak.mirror_due(%(slot)s);

-- name: masked
-- Tables with a masked column.
SELECT m.table_id FROM modak.mirror_tables m
 WHERE m.slot_name = %(slot)s AND m.columns @? '$[*] ? (@.type starts with "string masked")'
 ORDER BY m.table_id;

-- name: sender_timeout
-- In milliseconds. pg_settings would read all settings.
SELECT (1000 * extract(epoch FROM current_setting('wal_sender_timeout')::interval))::bigint;

-- name: live
SELECT table_id, start_lsn FROM modak.mirror_tables WHERE slot_name = %(slot)s AND state IN ('live', 'filling');

-- name: without_key
SELECT table_id FROM modak.mirror_tables WHERE slot_name = %(slot)s AND state = 'live' AND key = '{}';

-- name: no_indexes
-- Skips locked tables, here and in `indexes`: the session that holds the lock may be waiting for the pump.
UPDATE modak.mirror_tables SET key_index = key_index - '{phase,rows,bytes}'::text[]
 WHERE table_id = ANY (ARRAY(
       SELECT table_id FROM modak.mirror_tables
        WHERE slot_name = %(slot)s AND key_index ?| '{phase,rows,bytes}'::text[] FOR UPDATE SKIP LOCKED));

-- name: indexes
-- Returns the tables whose rows other transactions have locked: nothing is stored of them.
WITH stored AS (
    UPDATE modak.mirror_tables m SET key_index = coalesce(m.key_index, '{}') || n.report
      FROM unnest(%(table_ids)s::bigint[], %(reports)s::jsonb[]) AS n(table_id, report)
     WHERE m.table_id = n.table_id AND m.table_id = ANY (ARRAY(
           SELECT table_id FROM modak.mirror_tables WHERE table_id = ANY (%(table_ids)s::bigint[]) FOR UPDATE SKIP LOCKED))
    RETURNING m.table_id)
SELECT table_id FROM modak.mirror_tables WHERE table_id = ANY (%(table_ids)s::bigint[]) EXCEPT SELECT table_id FROM stored;

-- name: streamed
-- The tables whose changes come by the stream.
SELECT m.table_id FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
 WHERE m.slot_name = %(slot)s AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
 ORDER BY m.table_id;

-- name: failed_or_dropped
SELECT table_id FROM modak.mirror_tables WHERE table_id = %(table_id)s AND state IN ('failed', 'dropped');

-- name: failed
-- Failed tables that are still published, and the publication.
SELECT m.table_id, p.pubname
  FROM modak.mirror_tables m JOIN modak.mirror_slots s USING (slot_name)
  JOIN pg_publication p ON p.pubname = s.publication_name
  JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = m.table_id::oid
 WHERE m.slot_name = %(slot)s AND m.state = 'failed';

-- name: waiting
-- Tables that will be copied again once their owner has acted, and what they wait for.
SELECT table_id, error FROM modak.mirror_tables
 WHERE slot_name = %(slot)s AND state = 'waiting' AND error IS NOT NULL;

-- name: failed_and_dropped
-- Marks failed tables that have been dropped since as dropped. The pump no longer examines their changes.
UPDATE modak.mirror_tables m SET state = %(state)s, error = %(error)s, updated_at = now()
 WHERE m.slot_name = %(slot)s AND m.state = %(former)s AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = m.table_id::oid);
