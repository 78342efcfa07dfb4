-- What is published of mirrored tables (mirror_pump/source/catalog/published_state.py).

-- name: states
-- All tables, or those of a mirror, with these IDs, or of this name (each of the parameters may be NULL), as of one moment.
SELECT m.table_id, t.schema_name, m.lake_table, m.start_lsn, m.location, t.mode, m.state,
       m.paused_at IS NOT NULL AS paused,
       m.state = 'dropped' OR NOT EXISTS (SELECT FROM pg_class r WHERE r.oid = m.table_id::oid) AS dropped,
       m.live_after_lsn, c.replicated_lsn AS frontier, c.tier_key_hi AS cut,
       modak.has_cutline(t.mode, t.heap_retention_lag, c.tier_key_hi) AS has_cutline, c.lake_snapshot_id AS snapshot_id,
       coalesce(c.lake_props ->> 'metadata_location', '') AS published_location, i.metadata_location, m.lake_head AS head,
       extract(epoch FROM m.swept_before)::float8 AS swept_before, clock_timestamp() AS read_at, m.kept_ranges
  FROM modak.mirror_tables m
  JOIN modak.tables t USING (table_id)
  JOIN modak.cutline c USING (table_id)
  LEFT JOIN modak.lake_pointers i USING (table_id)
 WHERE (%(slot)s::text IS NULL OR m.slot_name = %(slot)s)
   AND (%(table_ids)s::bigint[] IS NULL OR m.table_id = ANY (%(table_ids)s))
   AND (%(name)s::text IS NULL OR (t.schema_name = %(schema)s AND m.lake_table = %(name)s))
 ORDER BY m.table_id;
