-- Each publish looks for tables whose copy is complete, and each registration for the mirrored table that has a name in the lake.
-- Neither may read the rows of all tables, of which there may be thousands.
CREATE INDEX modak_mirror_tables_under_way_idx ON modak.mirror_tables (slot_name, live_after_lsn)
    WHERE state IN ('waiting', 'copying', 'filling');
CREATE INDEX modak_mirror_tables_lake_table_idx ON modak.mirror_tables (lake_table);
