-- TRUNCATE of a single partition: the partitioned table's stream does not contain it, so triggers emit a note.

-- The trigger's function. It does not check whether the table is mirrored: a transaction whose snapshot is older than the
-- registration would not see the registration.
CREATE OR REPLACE FUNCTION modak.mirror_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mirrored bigint := pg_partition_root(TG_RELID)::oid::bigint;
BEGIN
    IF mirrored IS NOT NULL THEN
        PERFORM modak.mirror_message(jsonb_build_object('table', mirrored, 'truncated', TG_RELID::bigint,
                                                            'now', modak.mirror_events()));
    END IF;
    RETURN NULL;
END $$;

-- Creates the trigger on the partitions of a table that lack it. Returns the number of partitions that could not be locked (a
-- TRUNCATE of such a partition is detected later by its new file). Within a command that `touched` certain relations,
-- considers only those and new ones, since the command may hold no lock on others. ALTER TABLE ... DISABLE TRIGGER is undone
-- within its own command. A partition that lacked the trigger for another reason may have been truncated meanwhile, so a note
-- says that. Partitions of other owners are left alone.
CREATE OR REPLACE FUNCTION modak.mirror_watch(root oid, touched oid[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    partition record;
    missed int := 0;
BEGIN
    FOR partition IN
        SELECT c.oid AS leaf, t.oid IS NOT NULL AS made,
               coalesce(recorded.watched, false) AND NOT coalesce(t.oid IS NOT NULL AND c.oid = ANY (touched), false) AS unseen
          FROM modak.mirror_tree(root) r
          JOIN pg_class c ON c.oid = r.relation
          LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'mirror_pump_truncate'
          LEFT JOIN (SELECT (l ->> 'id')::oid AS leaf, l ->> 'file' IS NULL AS watched
                       FROM modak.mirror_shapes s
                      CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(s.shape -> 'leaves', 'null'), '[]')) l
                      WHERE s.table_id = root::bigint) recorded ON recorded.leaf = c.oid
         WHERE c.oid <> root AND c.relkind = 'r' AND t.tgenabled IS DISTINCT FROM 'A' AND pg_has_role(c.relowner, 'USAGE')
           AND (touched IS NULL OR c.oid = ANY (touched) OR recorded.leaf IS NULL)
    LOOP
        BEGIN
            -- Only mirror_ddl() reads this: it notes the shape once, not for each partition.
            PERFORM set_config('modak.watching', secret, true) FROM modak.mirror_secret;
            IF NOT partition.made THEN
                EXECUTE format('CREATE TRIGGER mirror_pump_truncate AFTER TRUNCATE ON %s'
                               ' FOR EACH STATEMENT EXECUTE FUNCTION modak.mirror_truncated()', partition.leaf::regclass);
            END IF;
            EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER mirror_pump_truncate', partition.leaf::regclass);
            IF partition.unseen THEN
                PERFORM modak.mirror_message(jsonb_build_object('table', root::bigint, 'truncated', partition.leaf::bigint));
            END IF;
            PERFORM set_config('modak.watching', '', true);
        EXCEPTION WHEN OTHERS THEN
            missed := missed + 1;
        END;
    END LOOP;
    RETURN missed;
END $$;

-- Removes all of our triggers from the partitions of a table.
CREATE OR REPLACE FUNCTION modak.mirror_unwatch(root oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    watch record;
BEGIN
    FOR watch IN
        SELECT t.tgrelid::regclass AS leaf, t.tgname
          FROM modak.mirror_tree(root) r JOIN pg_trigger t ON t.tgrelid = r.relation
         WHERE t.tgname IN ('mirror_pump_truncate', 'zz_modak_row', 'zz_modak_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', watch.tgname, watch.leaf);
    END LOOP;
END $$;

REVOKE EXECUTE ON FUNCTION modak.mirror_watch(oid, oid[]), modak.mirror_unwatch(oid) FROM PUBLIC;
