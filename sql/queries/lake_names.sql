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
WITH former AS (
    SELECT t.schema_name, m.lake_table FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
     WHERE t.table_id = %(table_id)s),
pointer AS (
    UPDATE modak.iceberg_tables i SET table_namespace = %(schema)s, table_name = %(name)s FROM former f
     WHERE i.catalog_name = 'lake' AND i.table_namespace = f.schema_name AND i.table_name = f.lake_table),
mirror AS (
    UPDATE modak.mirror_tables SET lake_table = %(name)s WHERE table_id = %(table_id)s)
UPDATE modak.tables
   SET schema_name = %(schema)s, table_name = %(name)s, lake_table_ref = %(schema)s || '.' || %(name)s
 WHERE table_id = %(table_id)s;

-- name: rename_feed
WITH pointer AS (
    UPDATE modak.iceberg_tables i SET table_namespace = %(schema)s, table_name = %(name)s FROM modak.change_feeds f
     WHERE f.feed_id = %(table_id)s AND i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name)
UPDATE modak.change_feeds SET namespace = %(schema)s, name = %(name)s WHERE feed_id = %(table_id)s;

-- name: rename_entry
-- A lake table that is not mirrored. Files of a former registration are listed under its new name.
WITH pointer AS (
    UPDATE modak.iceberg_tables SET table_namespace = %(schema)s, table_name = %(name)s
     WHERE catalog_name = 'lake' AND table_namespace = %(former_schema)s AND table_name = %(former_name)s
    RETURNING metadata_location)
UPDATE modak.former_locations l SET schema_name = %(schema)s, table_name = %(name)s
  FROM pointer p WHERE starts_with(p.metadata_location, rtrim(l.location, '/') || '/');
