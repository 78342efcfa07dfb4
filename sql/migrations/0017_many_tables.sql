-- Of thousands of tables, what is asked again and again is about a few: each publish looks for tables whose copy is complete, each
-- registration for the mirrored table that has a name in the lake, and threads of the pump every second or two for tables with heap
-- retention and for those that are only copied.
CREATE INDEX modak_mirror_tables_under_way_idx ON modak.mirror_tables (slot_name, live_after_lsn)
    WHERE state IN ('waiting', 'copying', 'filling');
CREATE INDEX modak_mirror_tables_lake_table_idx ON modak.mirror_tables (lake_table);
CREATE INDEX modak_mirror_tables_retention_idx ON modak.mirror_tables (slot_name) WHERE retention IS NOT NULL;
CREATE INDEX modak_mirror_tables_snapshot_idx ON modak.mirror_tables (slot_name) WHERE snapshot_only;
-- Each publish moves the frontier of every table. In full pages the new versions of all rows go on to new pages each time, so that the
-- table grows until a vacuum, and each publish takes longer than the one before. See 0007.
ALTER TABLE modak.cutline SET (fillfactor = 45);
