-- One row per table, for people and dashboards.

CREATE OR REPLACE VIEW modak.status AS
SELECT t.table_id,
       t.schema_name,
       t.table_name,
       t.mode,
       c.tier_key_hi AS cutline_t,
       c.lake_snapshot_id AS cutline_s,
       c.replicated_lsn AS mirror_frontier,
       c.retention_line,
       c.updated_at AS cutline_updated_at,
       (SELECT count(*) FROM modak.delta d WHERE d.table_id = t.table_id) AS delta_backlog,
       (SELECT count(*) FROM modak.read_pin_rows r WHERE r.table_id = t.table_id) AS read_pins,
       (SELECT count(*) FROM modak.load_labels l WHERE l.table_id = t.table_id AND l.state = 'staged') AS staged_loads,
       EXISTS (SELECT FROM modak.copy_progress g WHERE g.table_id = t.table_id) AS copying,
       (SELECT jsonb_object_agg(p.state, p.partitions)
          FROM (SELECT state, count(*) AS partitions
                  FROM modak.partitions
                 WHERE table_id = t.table_id
                 GROUP BY state) p) AS partition_states,
       (SELECT min(r.started_at) FROM modak.read_pin_rows r WHERE r.table_id = t.table_id AND r.expires_at > now()) AS oldest_pin,
       (SELECT count(*) FROM modak.read_pin_rows r WHERE r.table_id = t.table_id AND r.expires_at <= now()) AS expired_pins,
       (SELECT count(*) FROM modak.delta d WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL) AS delta_unfolded,
       (SELECT min(d.updated_at) FROM modak.delta d
         WHERE d.table_id = t.table_id AND d.folded_sequence IS NULL) AS delta_since,
       t.heap_retention_lag,
       m.retention ->> 'stopped' AS retention_stopped,
       (SELECT count(*) FROM modak.read_pin_rows r
         WHERE r.table_id = t.table_id AND r.expires_at > now() AND r.pinned_tier_key_hi = 9223372036854775807) AS lake_pins
  FROM modak.tables t
  LEFT JOIN modak.cutline c ON c.table_id = t.table_id
  LEFT JOIN modak.mirror_tables m ON m.table_id = t.table_id;
COMMENT ON VIEW modak.status IS 'One row per table, for people and dashboards';
