-- A mirrored table's entry comes and goes with its registration, and is renamed together with it: the mirror inserts the entry
-- before it registers, ends the registration before it deletes the entry, and renames both in one statement. So any other
-- statement that does that is another engine's, whatever its role. What a commit does to the rows no trigger sees; the pump looks at it.
CREATE OR REPLACE FUNCTION modak.refuse_foreign_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entry modak.iceberg_tables;
BEGIN
    IF TG_OP = 'INSERT' THEN
        entry := NEW;
    ELSE
        entry := OLD;
    END IF;
    IF entry.catalog_name = 'lake' AND EXISTS (
           SELECT FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
            WHERE t.schema_name = entry.table_namespace AND m.lake_table = entry.table_name) THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('lake table %s.%s mirrors a table of Postgres: no engine may %s it', entry.table_namespace,
                             entry.table_name, CASE TG_OP WHEN 'INSERT' THEN 'create' WHEN 'DELETE' THEN 'drop' ELSE 'rename' END),
            HINT = CASE TG_OP WHEN 'UPDATE' THEN 'Rename the table in Postgres: its lake table follows.'
                              ELSE 'mirror-pump unregister ends the registration; --drop-lake removes the lake table too.' END;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER refuse_foreign_entry AFTER INSERT OR DELETE ON modak.iceberg_tables FOR EACH ROW
    EXECUTE FUNCTION modak.refuse_foreign_entry();
CREATE OR REPLACE TRIGGER refuse_foreign_name AFTER UPDATE OF catalog_name, table_namespace, table_name ON modak.iceberg_tables
    FOR EACH ROW WHEN ((OLD.catalog_name, OLD.table_namespace, OLD.table_name)
                       IS DISTINCT FROM (NEW.catalog_name, NEW.table_namespace, NEW.table_name))
    EXECUTE FUNCTION modak.refuse_foreign_entry();
