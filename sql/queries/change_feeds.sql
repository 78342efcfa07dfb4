-- Change feeds and their place in the catalog (mirror_pump/source/catalog/change_feeds.py).

-- name: select
-- All columns of feeds, and where their metadata is. The program appends a condition.
SELECT f.feed_id, f.slot_name, f.mode, f.keep, f.namespace, f.name, f.location, f.begins_lsn, f.expired_lsn, f.created_at,
       i.metadata_location
  FROM modak.change_feeds f
  LEFT JOIN modak.iceberg_tables i ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name;

-- name: insert
INSERT INTO modak.change_feeds (feed_id, slot_name, mode, keep, namespace, name, location)
VALUES (%(feed_id)s, %(slot)s, %(mode)s, %(keep)s, %(namespace)s, %(name)s, %(location)s);

-- name: delete
DELETE FROM modak.change_feeds WHERE feed_id = %s;

-- name: begin
-- The frontier of a feed's first reset, unless it has one.
UPDATE modak.change_feeds SET begins_lsn = coalesce(begins_lsn, %(frontier)s) WHERE feed_id = %(feed_id)s;

-- name: rename
UPDATE modak.change_feeds SET name = %(name)s, namespace = %(namespace)s WHERE feed_id = %(feed_id)s;

-- name: rename_pointer
UPDATE modak.iceberg_tables SET table_name = %(name)s, table_namespace = %(namespace)s
 WHERE catalog_name = 'lake' AND table_namespace = %(old_namespace)s AND table_name = %(old_name)s;

-- name: pinned
-- Snapshots of a feed that readers use.
SELECT snapshot_id FROM modak.feed_pins WHERE feed_id = %s AND expires_at > now();

-- name: expire
-- Changes of a feed below a position may be gone.
UPDATE modak.change_feeds SET expired_lsn = greatest(expired_lsn, %(lsn)s) WHERE feed_id = %(feed_id)s;
