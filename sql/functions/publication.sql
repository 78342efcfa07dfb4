-- The publication and its tables.

-- Removes a relation from a publication of the mirror. False if it is not in it. Takes the OID, since a name may have
-- characters that the client's encoding lacks. Runs as the publication's owner: the pump removes tables that have failed, and
-- need not own the publication for that.
CREATE OR REPLACE FUNCTION modak.mirror_unpublish(publication text, relation bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
                     JOIN modak.mirror_slots s ON s.publication_name = p.pubname
                    WHERE p.pubname = publication AND r.prrelid = relation::oid) THEN
        RETURN false;
    END IF;
    EXECUTE format('ALTER PUBLICATION %I DROP TABLE %s', publication, relation::oid::regclass);
    RETURN true;
END $$;

-- Adds a relation to a publication of the mirror, with all columns and rows. False if it is in it. The role has to own both.
CREATE OR REPLACE FUNCTION modak.mirror_publish(publication text, relation bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
                WHERE p.pubname = publication AND r.prrelid = relation::oid) THEN
        RETURN false;
    END IF;
    EXECUTE format('ALTER PUBLICATION %I ADD TABLE %s', publication, relation::oid::regclass);
    RETURN true;
END $$;

-- What tells two row filters apart: the expression, without where in its text each part was. Names of columns are not in it.
CREATE OR REPLACE FUNCTION modak.mirror_filter_mark(expression text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT md5(regexp_replace(expression, ':location -?[0-9]+', '', 'g'))
$$;

-- How the tables are published whose changes come by the stream. `present` is a mark that changes whenever the publication's
-- settings or the table's part in it change, even if a change is undone. `whole`: all columns and rows are published, or those
-- of the table's own list and filter. In a publication of all tables, whose rows of pg_publication_rel say since PostgreSQL 19
-- what it does not publish (EXCEPT), none is: the mirror's is of single tables. A view, so that a query for a few tables reads no
-- others.
CREATE OR REPLACE VIEW modak.mirror_publications AS
SELECT m.slot_name, m.table_id, concat_ws(' ', p.oid, p.xmin, r.oid) AS present,
       r.oid IS NOT NULL AND NOT p.puballtables
       AND CASE WHEN r.prqual IS NULL AND r.prattrs IS NULL THEN NOT m.column_list AND m.row_filter_mark IS NULL
       ELSE modak.mirror_filter_mark(r.prqual::text) IS NOT DISTINCT FROM m.row_filter_mark
       AND (SELECT array_agg(listed::int ORDER BY listed::int) FROM unnest(r.prattrs::int2[]) AS listed)
           IS NOT DISTINCT FROM
           (SELECT array_agg(a.attnum::int ORDER BY a.attnum)
              FROM jsonb_array_elements(m.columns) AS e
              JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = (e ->> 'attnum')::int AND NOT a.attisdropped
             WHERE m.column_list) END AS whole
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.mirror_slots s ON s.slot_name = m.slot_name
  JOIN pg_class c ON c.oid = m.table_id::oid
  LEFT JOIN pg_publication p ON p.pubname = s.publication_name
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE t.mode = 'mirrored' AND m.state NOT IN ('failed', 'dropped');
COMMENT ON VIEW modak.mirror_publications IS 'How the publication has each mirrored table now';

REVOKE EXECUTE ON FUNCTION modak.mirror_unpublish(text, bigint), modak.mirror_publish(text, bigint) FROM PUBLIC;
