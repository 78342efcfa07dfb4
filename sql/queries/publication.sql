-- Compares the mirror's publication with what is recorded of it (mirror_pump/source/stream/publication.py).

-- name: changed
-- Whether the publication may have left out changes since it was recorded, or does so now. Ignores tables that wait to be
-- described, of which readers are promised nothing.
SELECT EXISTS (SELECT FROM modak.mirror_published(%(slot)s) n JOIN modak.mirror_tables m USING (table_id)
                WHERE n.present IS DISTINCT FROM m.published OR NOT (n.whole OR m.state = 'waiting'));

-- name: altered
-- Tables of which the publication may have left out changes, and those that it does not publish whole.
SELECT n.table_id FROM modak.mirror_published(%(slot)s) n JOIN modak.mirror_tables m USING (table_id)
 WHERE n.present IS DISTINCT FROM m.published OR NOT n.whole
 ORDER BY n.table_id;

-- name: record
UPDATE modak.mirror_tables m SET published = n.present
  FROM modak.mirror_published(%(slot)s) n
 WHERE n.table_id = m.table_id AND m.table_id = ANY (%(table_ids)s);

-- name: not_whole
SELECT table_id FROM modak.mirror_published(%(slot)s) WHERE NOT whole;

-- name: registered
-- The tables that belong in a publication, by their present names.
SELECT n.nspname AS schema, c.relname AS name
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
  JOIN modak.mirror_slots s ON s.slot_name = m.slot_name
  JOIN pg_class c ON c.oid = m.table_id::oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.publication_name = %(publication)s AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
 ORDER BY m.table_id;
