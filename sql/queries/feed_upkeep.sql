-- What the upkeep of change feeds reads from the catalog (mirror_pump/source/catalog/kept_feeds.py).

-- name: feeds
-- The feeds that have a table in the lake and all changes, with their pins. What was committed before `first_day`, counted from 1970, need not be
-- kept; NULL: everything is. Transactions are kept as long as the changes of any table.
SELECT f.feed_id, f.mode, f.keep, f.namespace, f.name, f.location, f.expired_lsn, i.metadata_location, f.head,
       mt.schema_name, mt.table_name,
       floor(extract(epoch FROM now() - k.keep) / 86400)::int AS first_day,
       extract(epoch FROM f.swept_before)::float8 AS swept_before,
       ARRAY(SELECT p.snapshot_id FROM modak.feed_pin_rows p WHERE p.feed_id = f.feed_id AND p.expires_at > now()) AS pinned
  FROM modak.change_feeds f
  JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
  LEFT JOIN modak.tables mt ON mt.table_id = f.feed_id
  CROSS JOIN LATERAL (
       SELECT nullif(least(CASE WHEN f.mode <> 'transactions' THEN f.keep
                                WHEN bool_and(t.keep IS NOT NULL) THEN max(t.keep) END, o.longest), o.longest) AS keep
         FROM (SELECT interval '1000 years' AS longest) o
         LEFT JOIN modak.change_feeds t ON t.slot_name = f.slot_name AND t.mode <> 'transactions'
        GROUP BY o.longest) k
 WHERE f.slot_name = %(slot)s AND f.error IS NULL AND (%(feed_ids)s::bigint[] IS NULL OR f.feed_id = ANY (%(feed_ids)s))
 ORDER BY f.feed_id;

-- name: store_stats
UPDATE modak.change_feeds SET stats = %(stats)s::jsonb || jsonb_build_object('looked_at', clock_timestamp())
 WHERE feed_id = %(feed_id)s AND location = %(location)s;

-- name: sweep_pins
-- Expired pins protect nothing, and a new pin is a row of its own. Not those whose row a reader's open transaction has
-- changed.
DELETE FROM modak.feed_pin_rows
 WHERE pin_id IN (SELECT p.pin_id FROM modak.feed_pin_rows p JOIN modak.change_feeds f USING (feed_id)
                   WHERE f.slot_name = %(slot)s AND p.expires_at <= now()
                     FOR UPDATE OF p SKIP LOCKED);

-- name: store_problem
UPDATE modak.change_feeds SET stats = coalesce(stats, '{}') || jsonb_build_object('problem', %(problem)s::text)
 WHERE feed_id = %(feed_id)s AND location = %(location)s AND stats ->> 'problem' IS DISTINCT FROM %(problem)s;

-- name: figures
-- What `status` shows of each feed.
SELECT f.feed_id, coalesce(t.schema_name, f.namespace) AS schema_name, coalesce(t.table_name, f.name) AS table_name,
       f.namespace AS lake_schema, f.name AS lake_name, f.mode, f.keep, f.begins_lsn, f.expired_lsn, i.metadata_location,
       (SELECT count(*) FROM modak.feed_pin_rows p WHERE p.feed_id = f.feed_id AND p.expires_at > now()) AS pins, f.stats, f.error,
       i.metadata_location <> f.head ->> 'location' AS moved, f.damaged_files
  FROM modak.change_feeds f
  LEFT JOIN modak.tables t ON t.table_id = f.feed_id
  LEFT JOIN modak.iceberg_tables i ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
 WHERE f.slot_name = %(slot)s
 ORDER BY 2, 3;
