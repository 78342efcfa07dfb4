-- Removes the mirror from its database, by psql, as the owner of schema modak: the replication slot, the publication, and the
-- schema with everything that depends on it, which are the triggers on partitions and the event triggers. The pump must be
-- stopped, and all tables unregistered and followers removed. Files in the warehouse stay.
\set ON_ERROR_STOP on
-- What others have created in a schema of this session's path is not meant here.
SET search_path = pg_catalog, pg_temp;
SELECT count(*) AS registered, count(*) > 0 AS some FROM modak.tables \gset
\if :some
    \warn :registered tables are still registered: mirror-pump unregister --drop-lake or --keep-lake them first
    -- psql ends with 3, as after an error.
    DO $$ BEGIN RAISE EXCEPTION 'nothing was removed'; END $$;
\endif
-- What followers show would stay in their catalogs, without anything that names it.
SELECT to_regclass('modak.followers') IS NOT NULL AS can_follow \gset
\if :can_follow
    SELECT string_agg(concat('mirror-pump follow remove ', name, ' --slot ', slot_name, ' --mirror ' || nullif(substr('modak', 7), '')),
                      E'\n' ORDER BY slot_name, name) AS removals, count(*) > 0 AS some
      FROM modak.followers \gset
    \if :some
        \warn these catalogs follow still (of one that is gone, --forget it):
        \warn :removals
        DO $$ BEGIN RAISE EXCEPTION 'nothing was removed'; END $$;
    \endif
\endif
-- Slots belong to the server: another database may have one of this name.
SELECT pg_drop_replication_slot(r.slot_name) FROM modak.mirror_slots s JOIN pg_replication_slots r USING (slot_name)
 WHERE r.database = current_database();
BEGIN;
SELECT format('DROP PUBLICATION IF EXISTS %I', publication_name) FROM modak.mirror_slots \gexec
DROP SCHEMA modak CASCADE;
COMMIT;
