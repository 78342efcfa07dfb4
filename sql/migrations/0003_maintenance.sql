-- What lets a sweep of unreferenced files and a publish know of each other, and what `status` says of a table's deletes.

ALTER TABLE modak.mirror_tables ADD COLUMN swept_before timestamptz;
ALTER TABLE modak.mirror_tables ADD COLUMN key_index jsonb;

-- Servers look for requests whose maintainer died twice a second, and the journal keeps a month.
CREATE INDEX modak_op_log_running_idx ON modak.op_log (table_id) WHERE phase = 'running';
-- `status` asks for the last pass and sweep of each table, among far more folds and steps of retention.
CREATE INDEX modak_op_log_maintenance_idx ON modak.op_log (table_id, updated_at) WHERE op_kind = 'maintenance';
