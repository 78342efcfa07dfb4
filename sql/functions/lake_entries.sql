-- Which entries of the Iceberg catalog are the mirror's, and which statements on them it refuses.

-- What a lake table is to the mirror: a verb and its object for error messages. NULL: it is another program's table.
CREATE OR REPLACE FUNCTION modak.lake_entry_of(namespace text, name text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mirrors a table of Postgres'
      FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
     WHERE t.schema_name = lake_entry_of.namespace AND m.lake_table = lake_entry_of.name
     UNION ALL
    SELECT CASE f.feed_id WHEN 0 THEN 'has the transactions of the mirror' ELSE 'is a change feed of the mirror' END
      FROM modak.change_feeds f
     WHERE f.namespace = lake_entry_of.namespace AND f.name = lake_entry_of.name
     LIMIT 1
$$;

-- A mirrored table's entry comes and goes with its registration, and is renamed together with it: the mirror inserts the entry
-- before it registers, ends the registration before it deletes the entry, and renames both in one statement. So it is with a
-- change feed. So any other statement that does that is another engine's, whatever its role. What a commit does to the rows no
-- trigger sees; the pump looks at it. A table that is not registered any more, and whose files a moment needs, keeps its entry
-- too: who drops a table deletes its files.
CREATE OR REPLACE FUNCTION modak.refuse_foreign_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entry modak.iceberg_tables;
    meaning text;
    mirrored text;
    moment text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        entry := NEW;
    ELSE
        entry := OLD;
    END IF;
    IF entry.catalog_name <> 'lake' THEN
        RETURN NULL;
    END IF;
    meaning := modak.lake_entry_of(entry.table_namespace, entry.table_name);
    IF meaning IS NOT NULL THEN
        -- The table of a change feed, as an argument for a shell.
        SELECT CASE WHEN n.name ~ '[^[:alnum:]_.]' THEN '''' || replace(n.name, '''', '''"''"''') || '''' ELSE n.name END
          INTO mirrored
          FROM modak.change_feeds f
          JOIN modak.tables t ON t.table_id = f.feed_id
         CROSS JOIN LATERAL format('%I.%I', t.schema_name, t.table_name) AS n(name)
         WHERE f.namespace = entry.table_namespace AND f.name = entry.table_name;
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('lake table %s.%s %s: no engine may %s it', entry.table_namespace, entry.table_name, meaning,
                             CASE TG_OP WHEN 'INSERT' THEN 'create' WHEN 'DELETE' THEN 'drop' ELSE 'rename' END),
            HINT = CASE WHEN meaning LIKE 'has the transactions%'
                        THEN 'Let engines connect with a reader''s role, which changes nothing.'
                        WHEN meaning LIKE 'is a change feed%'
                        THEN format('mirror-pump register %s --alter --no-changes ends the change feed.',
                                    coalesce(mirrored, 'TABLE'))
                        WHEN TG_OP = 'UPDATE' THEN 'Rename the table in Postgres: its lake table follows.'
                        ELSE 'mirror-pump unregister ends the registration; --drop-lake removes the lake table too.' END;
    END IF;
    IF TG_OP = 'DELETE' THEN
        SELECT min(k.name) INTO moment FROM modak.moment_tables k
         WHERE starts_with(k.metadata_location, regexp_replace(entry.metadata_location, '/metadata/[^/]*$', '') || '/');
        IF moment IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('the moment %s needs the files of lake table %s.%s: no engine may drop it', moment,
                                 entry.table_namespace, entry.table_name),
                HINT = format('mirror-pump moment drop %s gives the moment up.', moment);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER refuse_foreign_entry AFTER INSERT OR DELETE ON modak.iceberg_tables FOR EACH ROW
    EXECUTE FUNCTION modak.refuse_foreign_entry();
CREATE OR REPLACE TRIGGER refuse_foreign_name AFTER UPDATE OF catalog_name, table_namespace, table_name ON modak.iceberg_tables
    FOR EACH ROW WHEN ((OLD.catalog_name, OLD.table_namespace, OLD.table_name)
                       IS DISTINCT FROM (NEW.catalog_name, NEW.table_namespace, NEW.table_name))
    EXECUTE FUNCTION modak.refuse_foreign_entry();
