-- Rows of schema modak that belong together, and of which some are gone: after a partial restore, or a DELETE.

-- What is lost: the relation without its row and, of a registration, its table. `in_lake_alone`: the lake, or modak.delta, may
-- have rows of the table that its heap has not, so its registration must not end by itself.
CREATE OR REPLACE FUNCTION modak.mirror_lost_rows()
RETURNS TABLE (relation text, table_id bigint, table_name text, in_lake_alone boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
WITH known AS (
    SELECT coalesce(t.table_id, m.table_id) AS table_id, t.table_id AS registered_id, m.table_id AS mirrored_id, m.state,
           coalesce(t.mode, 'mirrored') = 'mirrored' AS streams,
           coalesce(quote_ident(t.schema_name) || '.' || quote_ident(t.table_name),
                    quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(m.lake_table)) AS table_name,
           coalesce(t.schema_name, n.nspname::text) AS namespace, coalesce(m.lake_table, t.table_name) AS lake_table
      FROM modak.tables t FULL JOIN modak.mirror_tables m USING (table_id)
      LEFT JOIN pg_class c ON c.oid = coalesce(t.table_id, m.table_id)::oid LEFT JOIN pg_namespace n ON n.oid = c.relnamespace),
lost AS (
    SELECT 'modak.mirror_tables' AS relation, k.table_id, k.table_name FROM known k WHERE k.mirrored_id IS NULL
    UNION ALL
    SELECT 'modak.tables', k.table_id, k.table_name FROM known k WHERE k.registered_id IS NULL
    UNION ALL
    SELECT 'modak.cutline', k.table_id, k.table_name FROM known k
     WHERE k.registered_id = k.mirrored_id AND NOT EXISTS (SELECT FROM modak.cutline c WHERE c.table_id = k.table_id)
    UNION ALL
    SELECT 'modak.mirror_shapes', k.table_id, k.table_name FROM known k
     WHERE k.registered_id = k.mirrored_id AND k.streams AND k.state NOT IN ('failed', 'dropped')
       AND NOT EXISTS (SELECT FROM modak.mirror_shapes s WHERE s.table_id = k.table_id)
    UNION ALL
    SELECT 'modak.iceberg_tables', k.table_id, k.table_name FROM known k JOIN modak.cutline c USING (table_id)
     WHERE k.registered_id = k.mirrored_id AND k.state NOT IN ('failed', 'dropped') AND c.lake_props ? 'metadata_location'
       AND NOT EXISTS (SELECT FROM modak.iceberg_tables i
                        WHERE (i.catalog_name, i.table_namespace, i.table_name) = ('lake', k.namespace, k.lake_table))
    UNION ALL
    -- Nothing is left of the registration but its place in the publication.
    SELECT 'modak.tables', r.prrelid::bigint, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
      FROM modak.mirror_slots s JOIN pg_publication p ON p.pubname = s.publication_name
      JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE s.streams AND NOT EXISTS (SELECT FROM known k WHERE k.table_id = r.prrelid::bigint))
SELECT 'modak.schema_meta', NULL::bigint, NULL::text, false WHERE NOT EXISTS (SELECT FROM modak.schema_meta)
UNION ALL
SELECT 'modak.mirror_secret', NULL, NULL, false
 WHERE NOT EXISTS (SELECT FROM modak.mirror_secret) AND EXISTS (SELECT FROM modak.mirror_slots s WHERE s.streams)
UNION ALL
SELECT l.relation, l.table_id, l.table_name,
       EXISTS (SELECT FROM modak.delta d WHERE d.table_id = l.table_id)
       OR EXISTS (SELECT FROM modak.partitions p WHERE p.table_id = l.table_id AND p.state IN ('tiering', 'tiered', 'dropped'))
       OR EXISTS (SELECT FROM modak.cutline c WHERE c.table_id = l.table_id AND c.tier_key_hi > -9223372036854775808)
  FROM lost l
$$;

-- Removes all rows of a table from schema modak, but those of Iceberg's catalog. A foreign key does that only while the row that
-- it leads to is there.
CREATE OR REPLACE FUNCTION modak.mirror_end_lost(id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT c.oid FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
         WHERE c.relnamespace = 'modak'::regnamespace AND c.relkind = 'r' AND a.attname = 'table_id'
         ORDER BY c.relname IN ('tables', 'mirror_tables'), c.relname = 'tables'
    LOOP
        EXECUTE format('DELETE FROM %s WHERE table_id = $1', relation) USING id;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION modak.mirror_end_lost(bigint) FROM PUBLIC;
