-- Triggers on the catalog's own tables. They have a file of their own, since to replace one waits for the table's writers.

-- Connectors of others replace rows here and do not know of folded_sequence: what is new is not folded.
CREATE OR REPLACE FUNCTION modak.delta_renewed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.folded_sequence := NULL;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER delta_renewed BEFORE UPDATE ON modak.delta FOR EACH ROW
    WHEN (NEW.version IS DISTINCT FROM OLD.version AND NEW.folded_sequence IS NOT NULL)
    EXECUTE FUNCTION modak.delta_renewed();
