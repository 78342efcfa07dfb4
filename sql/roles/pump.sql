-- The privileges in schema modak that a role needs for `run`, `maintain`, `verify`, `resync`, `reconcile`, `status` and `retain`.
-- It owns nothing: it can neither alter the catalog nor the publication. It has to read modak.mirror_secret, which signs change
-- notes. Can be run again, and has to be run after `mirror-pump init` has upgraded the catalog.
--   psql -v pump=mirror_pump -f pump.sql

-- What others have created in a schema of this session's path is not meant here.
SET search_path = pg_catalog, pg_temp;

GRANT USAGE ON SCHEMA modak TO :"pump";
GRANT SELECT ON ALL TABLES IN SCHEMA modak TO :"pump";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA modak TO :"pump";
-- All functions, but those by which the admin runs statements with the rights of tables' owners (modak.owner_function).
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, :'pump') FROM pg_proc p
 WHERE p.pronamespace = 'modak'::regnamespace AND p.proname !~ '^(owner|held)_[0-9]+$' \gexec

-- Registrations and the position of the slot change, but the pump neither makes nor ends them.
GRANT UPDATE ON modak.tables, modak.mirror_tables, modak.mirror_slots, modak.mirror_shapes, modak.followers TO :"pump";

GRANT INSERT, UPDATE, DELETE ON modak.cutline, modak.partitions, modak.delta, modak.mirror_captured, modak.read_pins, modak.read_pin_rows, modak.op_log,
    modak.lake_stats, modak.load_labels, modak.maintenance_requests, modak.copy_progress, modak.copy_chunks, modak.partition_chunks,
    modak.mirror_damaged_files, modak.mirror_not_joined, modak.former_locations, modak.moments, modak.moment_tables,
    modak.follower_tables, modak.change_feeds, modak.feed_pins, modak.feed_pin_rows,
    modak.iceberg_tables, modak.iceberg_namespace_properties TO :"pump";
