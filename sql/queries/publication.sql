-- Compares the mirror's publication with what is recorded of it (mirror_pump/source/stream/publication.py).

-- name: state
-- A mark of all that `changed` is computed from. That a copy is complete does not change it. NULL if a table has a column list,
-- which its attributes decide too.
WITH published AS (
    SELECT concat_ws(' ', p.oid, p.xmin, count(*), sum(hashoidextended(r.oid, 0)), sum(hashtid(r.ctid))) AS mark
      FROM modak.mirror_slots s JOIN pg_publication p ON p.pubname = s.publication_name
      LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid
     WHERE s.slot_name = %(slot)s GROUP BY p.oid, p.xmin),
recorded AS (
    SELECT concat_ws(' ', count(*), sum(hashint8extended(m.start_lsn, m.table_id)), sum(hashtextextended(m.published, m.table_id)),
                     sum(hashtextextended(m.row_filter_mark, m.table_id)),
                     sum(hashtextextended(CASE WHEN m.state IN ('failed', 'dropped') THEN 'ended' WHEN m.state = 'waiting' THEN 'waiting'
                                               END, m.table_id))) AS mark,
           bool_or(m.column_list) AS listed
      FROM modak.mirror_tables m WHERE m.slot_name = %(slot)s)
SELECT CASE WHEN NOT coalesce(r.listed, false) THEN concat_ws(' ', (SELECT p.mark FROM published p), r.mark) END FROM recorded r;

-- name: changed
-- Whether the publication may have left out changes since it was recorded, or does so now. Ignores tables that wait to be
-- described, of which readers are promised nothing.
SELECT EXISTS (SELECT FROM modak.mirror_publications n JOIN modak.mirror_tables m USING (table_id)
                WHERE n.slot_name = %(slot)s AND (n.present IS DISTINCT FROM m.published OR NOT (n.whole OR m.state = 'waiting')));

-- name: altered
-- Tables of which the publication may have left out changes, and those that it does not publish whole; and whether that is more
-- than that they are paused. If there is none, `changed` is false.
SELECT n.table_id, n.present IS DISTINCT FROM m.published OR m.paused_at IS NULL AS unpaused
  FROM modak.mirror_publications n JOIN modak.mirror_tables m USING (table_id)
 WHERE n.slot_name = %(slot)s AND (n.present IS DISTINCT FROM m.published OR NOT n.whole)
 ORDER BY n.table_id;

-- name: record
-- A paused table that somebody published by hand is not paused any more.
UPDATE modak.mirror_tables m SET published = n.present, paused_at = CASE WHEN NOT n.whole THEN m.paused_at END
  FROM modak.mirror_publications n
 WHERE n.slot_name = %(slot)s AND n.table_id = m.table_id AND m.table_id = ANY (%(table_ids)s);

-- name: not_whole
SELECT table_id FROM modak.mirror_publications WHERE slot_name = %(slot)s AND NOT whole;

-- name: lacks_a_part
SELECT EXISTS (SELECT FROM modak.mirror_publications WHERE slot_name = %(slot)s AND table_id = %(table_id)s AND NOT whole);

-- name: registered
-- The tables that belong in a publication, by their present names; or one table alone, if its number is given.
SELECT n.nspname AS schema, c.relname AS name, m.row_filter,
       ARRAY(SELECT a.attname::text FROM jsonb_array_elements(m.columns) AS e
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = (e ->> 'attnum')::int
              WHERE m.column_list AND NOT a.attisdropped) AS columns
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
  JOIN modak.mirror_slots s ON s.slot_name = m.slot_name
  JOIN pg_class c ON c.oid = m.table_id::oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.publication_name = %(publication)s AND t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped')
   AND CASE WHEN %(table_id)s::bigint IS NULL THEN m.paused_at IS NULL ELSE m.table_id = %(table_id)s END
 ORDER BY m.table_id;

-- name: filter
-- The row filter of a table (mirror_pump/source/relations/row_filters.py). A listed column depends once on the list, and once
-- more if it is in the filter.
SELECT pg_get_expr(r.prqual, r.prrelid) AS condition,
       ARRAY(SELECT d.refobjsubid FROM pg_depend d
              WHERE d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.prrelid AND d.refobjsubid > 0
              GROUP BY d.refobjsubid
             HAVING count(*) > coalesce(d.refobjsubid = ANY (r.prattrs::int2[]), false)::int) AS column_numbers,
       EXISTS (SELECT FROM pg_attribute a
                WHERE a.attrelid = r.prrelid AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1) AS has_large_values
  FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
 WHERE p.pubname = %(publication)s AND r.prrelid = %(table_id)s::oid;

-- name: record_filter
UPDATE modak.mirror_tables m
   SET row_filter = pg_get_expr(r.prqual, r.prrelid), row_filter_mark = modak.mirror_filter_mark(r.prqual::text)
  FROM modak.mirror_slots s JOIN pg_publication p ON p.pubname = s.publication_name
  JOIN pg_publication_rel r ON r.prpubid = p.oid
 WHERE m.table_id = %(table_id)s AND s.slot_name = m.slot_name AND r.prrelid = m.table_id::oid AND r.prqual IS NOT NULL
   AND coalesce(m.row_filter_mark, modak.mirror_filter_mark(r.prqual::text)) = modak.mirror_filter_mark(r.prqual::text);

-- name: rules
-- The column list and the row filter that the publication has for a relation now, registered or not, and the mark of that state.
SELECT concat_ws(' ', p.oid, p.xmin, r.oid) AS published_mark,
       coalesce((SELECT array_agg(listed::int ORDER BY listed::int) FROM unnest(r.prattrs::int2[]) AS listed), '{}') AS listed,
       coalesce(pg_get_expr(r.prqual, r.prrelid), '') AS condition,
       modak.mirror_filter_mark(r.prqual::text) AS mark,
       coalesce((SELECT m.rules_taken_over OR (NOT m.column_list AND m.row_filter = '')
                   FROM modak.mirror_tables m WHERE m.table_id = r.prrelid::bigint), true) AS may_be_lifted
  FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
 WHERE p.pubname = %(publication)s AND r.prrelid = %(table_id)s::oid;

-- name: take_over
UPDATE modak.mirror_tables
   SET column_list = %(column_list)s, row_filter = %(row_filter)s, row_filter_mark = %(mark)s,
       leaves_out_new = %(leaves_out_new)s, rules_taken_over = %(may_be_lifted)s, published = %(published)s
 WHERE table_id = %(table_id)s;
