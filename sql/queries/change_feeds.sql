-- Change feeds and their place in the catalog (mirror_pump/source/catalog/change_feeds.py).

-- name: select
-- All columns of feeds, where their metadata is, and their pins. The program appends a condition. What was committed before
-- `first_day`, counted from 1970, need not be kept; NULL: everything is. Transactions are kept as long as the changes of any table.
SELECT f.feed_id, f.mode, f.keep, f.namespace, f.name, f.location, f.begins_lsn, f.not_before_lsn, f.expired_lsn, f.error,
       i.metadata_location, f.head, f.stats, f.damaged_files, coalesce(t.schema_name, f.namespace) AS schema_name,
       coalesce(t.table_name, f.name) AS relation_name, m.state, s.applied_lsn, clock_timestamp() AS read_at,
       floor(extract(epoch FROM now() - nullif(least(
           CASE WHEN f.mode <> 'transactions' THEN f.keep
                ELSE (SELECT CASE WHEN bool_and(k.keep IS NOT NULL) THEN max(k.keep) END FROM modak.change_feeds k
                       WHERE k.slot_name = f.slot_name AND k.mode <> 'transactions') END,
           '1000 years'), '1000 years')) / 86400)::int AS first_day,
       extract(epoch FROM f.swept_before)::float8 AS swept_before,
       ARRAY(SELECT p.snapshot_id FROM modak.feed_pin_rows p
              WHERE p.feed_id = f.feed_id AND p.expires_at > now()) AS pinned
  FROM modak.change_feeds f
  JOIN modak.mirror_slots s USING (slot_name)
  LEFT JOIN modak.tables t ON t.table_id = f.feed_id
  LEFT JOIN modak.mirror_tables m ON m.table_id = f.feed_id
  LEFT JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name;

-- name: any
SELECT 1 FROM modak.change_feeds WHERE slot_name = %(slot)s LIMIT 1;

-- name: insert
INSERT INTO modak.change_feeds (feed_id, slot_name, mode, keep, namespace, name, location, head, not_before_lsn)
VALUES (%(feed_id)s, %(slot)s, %(mode)s, %(keep)s, %(namespace)s, %(name)s, %(location)s, %(head)s, coalesce(%(not_before)s, 0));

-- name: delete
DELETE FROM modak.change_feeds WHERE feed_id = %s RETURNING namespace AS schema, name;

-- name: keep
UPDATE modak.change_feeds SET keep = %s WHERE feed_id = %s;

-- name: examined
-- The state of a feed that the mirror builds on from now on, unless another one was recorded meanwhile.
UPDATE modak.change_feeds SET head = %(head)s
 WHERE feed_id = %(feed_id)s AND head IS NOT DISTINCT FROM %(former)s::jsonb;

-- name: move
-- Moves the pointers of feeds from where they were read, and records where they begin, and below which position changes may be
-- gone. Returns the feeds whose pointers were there, unless a sweep may have removed files that were written since.
WITH next AS (
    SELECT * FROM unnest(%(feed_ids)s::bigint[], %(old)s::text[], %(new)s::text[], %(begins)s::bigint[], %(expired)s::bigint[],
                         %(heads)s::jsonb[], %(written_since)s::float8[], %(errors)s::text[])
               AS n(feed_id, old, new, begins, expired, head, written_since, error)),
moved AS (
    UPDATE modak.iceberg_tables i SET metadata_location = n.new, previous_metadata_location = i.metadata_location
      FROM next n JOIN modak.change_feeds f USING (feed_id)
     WHERE i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
       AND i.metadata_location = n.old AND (f.swept_before >= to_timestamp(n.written_since)) IS NOT TRUE
    RETURNING n.feed_id)
UPDATE modak.change_feeds f
   SET begins_lsn = coalesce(f.begins_lsn, n.begins), head = n.head,
       -- What was staged on an error made up for that one only.
       error = nullif(f.error, n.error),
       expired_lsn = greatest(f.expired_lsn, n.expired)
  FROM next n JOIN moved USING (feed_id)
 WHERE f.feed_id = n.feed_id
RETURNING f.feed_id;

-- name: broken
-- Feeds that a publish could not write.
UPDATE modak.change_feeds f SET error = n.error
  FROM unnest(%(feed_ids)s::bigint[], %(errors)s::text[]) AS n(feed_id, error)
 WHERE f.feed_id = n.feed_id AND f.error IS DISTINCT FROM n.error;

-- name: interrupt
-- Feeds of which nothing is known between the last publish and the next: they get a reset.
UPDATE modak.change_feeds SET error = %(reason)s WHERE slot_name = %(slot)s AND begins_lsn IS NOT NULL AND error IS NULL;

-- name: store_stats
UPDATE modak.change_feeds SET stats = %(stats)s::jsonb || jsonb_build_object('looked_at', clock_timestamp())
 WHERE feed_id = %(feed_id)s AND location = %(location)s;

-- name: store_problem
UPDATE modak.change_feeds SET stats = coalesce(stats, '{}') || jsonb_build_object('problem', %(problem)s::text)
 WHERE feed_id = %(feed_id)s AND location = %(location)s AND stats ->> 'problem' IS DISTINCT FROM %(problem)s;
