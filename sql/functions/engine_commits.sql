-- Commits of engines by Iceberg's JDBC catalog. Its Java client sends the UPDATE of the pointer again when the connection is lost
-- before the answer. If the first one was done, the second finds no row, which Iceberg takes for a commit that failed: it deletes
-- the files that the table's new snapshot has, or moves the table back to it below commits that came since.
-- The invariant: the client is told that a commit has failed (no row) only if it was not done. Otherwise it gets an error, after
-- which Iceberg deletes nothing.

-- Notes the metadata file of a commit, whose name is unique. A repetition comes within seconds, or minutes.
CREATE OR REPLACE FUNCTION modak.note_engine_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM modak.mirror_engine_commits c
     WHERE c.location IN (SELECT o.location FROM modak.mirror_engine_commits o WHERE o.committed_at < now() - interval '1 day'
                             FOR UPDATE SKIP LOCKED);
    INSERT INTO modak.mirror_engine_commits (location) VALUES (NEW.metadata_location) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- What the UPDATE found is known from its result, and what it wanted from its text, so it must not have parameters: in the order of
-- the text, its strings are the new location, the old one, the catalog, the namespace, the table.
CREATE OR REPLACE FUNCTION modak.doubt_engine_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    texts text[];
BEGIN
    IF EXISTS (SELECT FROM moved) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(replace(literal[1], '''''', '''') ORDER BY place) INTO texts
      FROM regexp_matches(current_query(), '''((?:[^'']|'''')*)''', 'g') WITH ORDINALITY AS f(literal, place);
    -- If it was not done it never will be, by an attempt that still waits: pointers do not come back to an old location.
    IF NOT EXISTS (SELECT FROM modak.mirror_engine_commits c WHERE c.location = texts[1]) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'statement_completion_unknown',
        MESSAGE = format('the commit of %s.%s was done, and its answer was lost', texts[4], texts[5]),
        DETAIL = format('It moved the pointer to %s.', texts[1]),
        HINT = 'Load the table again: the commit is there.';
END $$;

-- Refuses a commit to a mirrored table or a change feed by a client that could not be told: its UPDATE has parameters, which no trigger sees.
CREATE OR REPLACE FUNCTION modak.refuse_engine_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.catalog_name = 'lake' AND modak.lake_entry_of(NEW.table_namespace, NEW.table_name) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('a lost answer to a commit of %s.%s would damage the table', NEW.table_namespace, NEW.table_name),
            HINT = 'Set the catalog''s property jdbc.preferQueryMode to simple, as in the output of mirror-pump connect.';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER note_engine_commit AFTER UPDATE ON modak.iceberg_tables FOR EACH ROW
    WHEN (current_query() LIKE 'UPDATE iceberg\_tables SET metadata\_location = %')
    EXECUTE FUNCTION modak.note_engine_commit();
CREATE OR REPLACE TRIGGER doubt_engine_commit AFTER UPDATE ON modak.iceberg_tables
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT
    WHEN (current_query() LIKE 'UPDATE iceberg\_tables SET metadata\_location = %')
    EXECUTE FUNCTION modak.doubt_engine_commit();
CREATE OR REPLACE TRIGGER refuse_engine_commit BEFORE UPDATE ON modak.iceberg_tables FOR EACH ROW
    WHEN (current_query() LIKE 'UPDATE iceberg\_tables SET metadata\_location = $1 , previous\_metadata\_location = $2 %')
    EXECUTE FUNCTION modak.refuse_engine_commit();
