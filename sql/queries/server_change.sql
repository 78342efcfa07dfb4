-- A server that took the place of the mirror's (mirror_pump/source/catalog/server_change.py).

-- name: server
SELECT s.drained_lsn AS drained, (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_end,
       pg_size_bytes(current_setting('wal_segment_size')) AS segment_bytes,
       (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical') AS logical_slots,
       ARRAY(SELECT quote_ident(p.subname) FROM pg_subscription p
               JOIN pg_subscription_rel r ON r.srsubid = p.oid
              WHERE p.subenabled AND r.srrelid = 'modak.mirror_slots'::regclass ORDER BY p.subname) AS subscriptions
  FROM modak.mirror_slots s WHERE s.slot_name = %(slot)s;

-- name: moved
-- Tables by whose names there is another relation. One that was renamed or dropped since is a matter of the stream.
SELECT t.schema_name, t.table_name, t.table_id, c.oid::bigint AS relation_id
  FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)
  JOIN pg_namespace n ON n.nspname = t.schema_name
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped') AND c.oid <> t.table_id::oid
 ORDER BY t.schema_name, t.table_name;

-- name: outdated
SELECT n.name, n.needed, coalesce(pg_sequence_last_value(n.name::regclass), 0) AS position
  FROM (VALUES ('modak.delta_version', greatest((SELECT max(version) FROM modak.delta), (SELECT max(version) FROM modak.mirror_captured),
                                                (SELECT max(captured_after) FROM modak.partitions))),
               ('modak.read_pins_pin_id_seq', (SELECT max(pin_id) FROM modak.read_pins)),
               ('modak.feed_pins_pin_id_seq', (SELECT max(pin_id) FROM modak.feed_pins))) AS n (name, needed)
 WHERE coalesce(pg_sequence_last_value(n.name::regclass), 0) < n.needed;

-- name: unguarded
-- Partitions below the cut-line that lack the trigger by which their changes become corrections: DDL is not replicated. Of those that
-- the catalog knows, DROPPED ones were dropped elsewhere.
SELECT m.table_id, a.relation::bigint AS relation_id, coalesce(p.partition_id, a.relation::regclass::text) AS partition_id,
       coalesce(p.state IN ('tiering', 'tiered'), false) AS is_shared
  FROM modak.mirror_tables m
  JOIN modak.tables t ON t.table_id = m.table_id AND t.tier_key_type IS NOT NULL
  CROSS JOIN LATERAL modak.tier_partitions(m.table_id::oid) a
  LEFT JOIN modak.partitions p ON p.table_id = m.table_id AND p.relation_id = a.relation::bigint
 WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped') AND NOT a.is_default
   AND a.lo < modak.moved_cut(m.table_id) AND NOT modak.retained_by(a.relation, 'cold')
 ORDER BY m.table_id, a.lo;

-- name: forget_drain
UPDATE modak.mirror_slots SET drained_lsn = NULL WHERE slot_name = %(slot)s AND drained_lsn IS NOT NULL;

-- name: take_over_published
-- How tables are published now, where that was so before the slot was made. A table that was published before is, and one that
-- was not is not.
UPDATE modak.mirror_tables m SET published = n.present
  FROM modak.mirror_publications n
  JOIN modak.mirror_slots s USING (slot_name)
  JOIN pg_replication_slots r ON r.slot_name = s.slot_name
  JOIN pg_publication p ON p.pubname = s.publication_name
  LEFT JOIN pg_publication_rel t ON t.prpubid = p.oid AND t.prrelid = n.table_id::oid
 WHERE n.slot_name = %(slot)s AND m.table_id = n.table_id
   AND (n.whole OR t.oid IS NULL)
   AND cardinality(string_to_array(m.published, ' ')) = cardinality(string_to_array(n.present, ' '))
   AND age(p.xmin) > age(r.catalog_xmin) AND (t.oid IS NULL OR age(t.xmin) > age(r.catalog_xmin));

-- name: take_over_noted
-- The shapes that were noted last, where nothing differs but marks from before the slot was made.
UPDATE modak.mirror_shapes o SET shape = n.shape
  FROM (SELECT m.table_id, modak.mirror_shape(m.table_id::oid) AS shape, r.catalog_xmin
          FROM modak.mirror_tables m JOIN pg_replication_slots r USING (slot_name)
         WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped')) n
 WHERE o.table_id = n.table_id AND o.shape <> n.shape
   AND modak.mirror_shape_content(o.shape) = modak.mirror_shape_content(n.shape)
   AND modak.mirror_shape_is_older(n.table_id::oid, n.catalog_xmin);

-- name: take_over_shapes
-- The shapes up to the frontier. Without a stream there is no slot, and no note either.
UPDATE modak.mirror_tables o SET shape = n.shape
  FROM (SELECT m.table_id, modak.mirror_shape(m.table_id::oid) AS shape, t.mode,
               (SELECT r.catalog_xmin FROM pg_replication_slots r WHERE r.slot_name = m.slot_name) AS catalog_xmin
          FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
         WHERE m.slot_name = %(slot)s AND m.state NOT IN ('failed', 'dropped')) n
 WHERE o.table_id = n.table_id AND o.shape <> n.shape
   AND modak.mirror_shape_content(o.shape) = modak.mirror_shape_content(n.shape)
   AND (n.mode = 'tiered' OR modak.mirror_shape_is_older(n.table_id::oid, n.catalog_xmin));

-- name: wait_anew
-- Transaction numbers may be those of another server, also in marks.
UPDATE modak.partitions p SET advanced_xid = pg_current_xact_id()::text::bigint, proven_as = NULL
  FROM modak.mirror_tables m
 WHERE m.slot_name = %(slot)s AND p.table_id = m.table_id AND p.advanced_xid IS NOT NULL;

-- name: accept
-- A file's time has fractions that the type rounds.
UPDATE modak.mirror_slots
   SET system_identifier = %(system_identifier)s, timeline = %(timeline)s, drained_lsn = %(drained)s,
       accepted_until = greatest(accepted_until, to_timestamp(nullif(%(accepted)s::float8, 0)) + interval '1 ms')
 WHERE slot_name = %(slot)s;
