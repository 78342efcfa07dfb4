-- Names of mirrored tables and of their change feeds (mirror_pump/pipeline/operations/lake_names.py).

-- name: catalog_names
SELECT table_id, schema_name, table_name FROM modak.tables WHERE table_id = ANY (%(table_ids)s);

-- name: not_streamed
-- Tables that the stream does not rename, since they have failed or wait, and that PostgreSQL has other names for.
SELECT t.table_id
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN pg_class c ON c.oid = t.table_id::oid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE m.slot_name = %(slot)s AND m.state IN ('failed', 'waiting') AND (n.nspname, c.relname) <> (t.schema_name, t.table_name);

-- name: registered
-- Registered tables, with the names that PostgreSQL has for them; NULL once they are dropped, and, `in_ascii`, if they have other
-- characters.
SELECT t.table_id, t.schema_name, t.table_name, f.namespace AS feed_schema, f.name AS feed_name,
       n.nspname::text AS present_schema, c.relname::text AS present_name
  FROM modak.tables t
  LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
    ON c.oid = t.table_id::oid AND NOT (%(in_ascii)s AND format('%%s.%%s', n.nspname, c.relname) ~ '[^ -~]')
  LEFT JOIN modak.change_feeds f ON f.feed_id = t.table_id
 ORDER BY t.table_id;

-- name: entries
SELECT table_namespace AS schema, table_name AS name FROM modak.iceberg_tables WHERE catalog_name = 'lake';

-- name: feeds_without_table
-- The mirror's lake tables that no registered table gives a name: of the transactions, and of feeds whose registration is lost.
SELECT f.namespace AS schema, f.name FROM modak.change_feeds f
 WHERE NOT EXISTS (SELECT FROM modak.tables t WHERE t.table_id = f.feed_id);

-- name: is_relation
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relname = %(name)s;

-- name: rename
-- Returns the lake table's name before.
WITH mirror AS (
    UPDATE modak.mirror_tables SET lake_table = %(name)s WHERE table_id = %(table_id)s)
UPDATE modak.tables t
   SET schema_name = %(schema)s, table_name = %(name)s, lake_table_ref = %(schema)s || '.' || %(name)s
  FROM modak.tables f LEFT JOIN modak.mirror_tables m USING (table_id)
 WHERE t.table_id = %(table_id)s AND f.table_id = t.table_id
RETURNING f.schema_name AS schema, coalesce(m.lake_table, f.table_name) AS name;

-- name: rename_feed
-- Returns its name before.
UPDATE modak.change_feeds n SET namespace = %(schema)s, name = %(name)s
  FROM modak.change_feeds f WHERE n.feed_id = %(table_id)s AND f.feed_id = n.feed_id
RETURNING f.namespace AS schema, f.name;

-- name: rename_location
-- Files of a former registration are listed under the new name of its lake table.
UPDATE modak.former_locations SET schema_name = %(schema)s, table_name = %(name)s
 WHERE starts_with(%(pointer)s, rtrim(location, '/') || '/');
