-- Triggers on the catalog's own tables, in a separate file because replacing a trigger waits for the table's writers.

-- Other programs replace rows here and do not know folded_sequence. A new version of a row is not folded yet.
CREATE OR REPLACE FUNCTION modak.delta_renewed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.folded_sequence := NULL;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER delta_renewed BEFORE UPDATE ON modak.delta FOR EACH ROW
    WHEN (NEW.version IS DISTINCT FROM OLD.version AND NEW.folded_sequence IS NOT NULL)
    EXECUTE FUNCTION modak.delta_renewed();
