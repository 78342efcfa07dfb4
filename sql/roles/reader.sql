-- The privileges in schema modak that a role needs to read the mirror, in addition to those on the tables themselves. It can
-- pin what it reads, and change nothing else. It must not read modak.mirror_secret, with which notes of schema changes could
-- be forged. Can be run again, and has to be run after `mirror-pump init` has upgraded the catalog.
--   psql -v reader=analyst -f reader.sql      or: mirror-pump reader analyst
GRANT USAGE ON SCHEMA modak TO :"reader";

-- The seam protocol: modak.pin, and readers of other programs. Where partitions leave the heap, only a pinned read is exact.
GRANT SELECT ON modak.schema_meta, modak.tables, modak.cutline, modak.delta, modak.storage_profiles TO :"reader";
GRANT SELECT, INSERT, UPDATE, DELETE ON modak.read_pins, modak.feed_pins TO :"reader";
-- The tables behind these views. No more, so that a reader can lock neither: whoever may delete rows may lock the table.
GRANT SELECT, INSERT ON modak.read_pin_rows, modak.feed_pin_rows TO :"reader";

-- Iceberg's JDBC catalog: for Spark, Trino, pyiceberg, and readers that need the metadata file.
GRANT SELECT ON modak.iceberg_tables, modak.iceberg_namespace_properties TO :"reader";

-- `mirror-pump sql`, `wait`, `where` and `connect`, mirror_pump.spark.read, modak.pin, modak.wait_for, and modak.status for dashboards.
GRANT SELECT ON modak.mirror_migrations, modak.mirror_functions, modak.mirror_slots, modak.mirror_tables,
    modak.lake_pointers, modak.moments, modak.moment_tables, modak.change_feeds, modak.former_locations, modak.followers,
    modak.follower_tables, modak.status TO :"reader";
