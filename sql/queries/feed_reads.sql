-- Change feeds as readers see them (mirror_pump/source/catalog/feed_reads.py).

-- name: feeds
-- All feeds of the mirror, with the mirrored table of each, as of one moment. The metadata is that of the mirror: another engine's
-- commit is read once the pump has examined it. The table of transactions has the mirror's own frontier.
SELECT f.feed_id, f.mode, coalesce(t.schema_name, f.namespace) AS namespace, coalesce(m.lake_table, f.name) AS name,
       f.namespace AS feed_namespace, f.name AS feed_name, m.state, m.paused_at IS NOT NULL AS paused, f.begins_lsn,
       f.expired_lsn, f.error,
       CASE WHEN i.metadata_location IS NOT NULL THEN coalesce(f.head ->> 'location', i.metadata_location) END AS metadata_location,
       CASE WHEN f.feed_id = 0 THEN b.frontier ELSE c.replicated_lsn END AS frontier, b.frontier AS mirror_frontier
  FROM modak.change_feeds f
  JOIN modak.mirror_slots s USING (slot_name)
  LEFT JOIN modak.mirror_tables m ON m.table_id = f.feed_id
  LEFT JOIN modak.tables t ON t.table_id = f.feed_id
  LEFT JOIN modak.cutline c ON c.table_id = f.feed_id
  LEFT JOIN modak.iceberg_tables i
    ON i.catalog_name = 'lake' AND i.table_namespace = f.namespace AND i.table_name = f.name
 CROSS JOIN LATERAL (
       SELECT coalesce(max(o.replicated_lsn), s.applied_lsn) AS frontier
         FROM modak.mirror_tables n JOIN modak.cutline o USING (table_id)
        WHERE n.slot_name = f.slot_name) b
 WHERE f.slot_name = %(slot)s
 ORDER BY f.feed_id;
