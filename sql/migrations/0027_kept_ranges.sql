-- Ranges of the tier key whose partitions their owner took away above the cut-line: the lake has rows there that the heap has not.
ALTER TABLE modak.mirror_tables ADD COLUMN kept_ranges int8multirange NOT NULL DEFAULT '{}';
UPDATE modak.mirror_tables m
   SET kept_ranges = k.ranges
  FROM (SELECT p.table_id, range_agg(int8range(p.tier_key_lo, p.tier_key_hi)) AS ranges
          FROM modak.partitions p JOIN modak.cutline c USING (table_id) JOIN modak.tables t USING (table_id)
         WHERE t.mode = 'mirrored' AND p.state IN ('hot', 'sealing') AND p.tier_key_hi > c.tier_key_hi
           AND NOT EXISTS (SELECT FROM pg_inherits i
                            WHERE i.inhparent = p.table_id::oid AND i.inhrelid = p.relation_id::oid)
         GROUP BY p.table_id) k
 WHERE k.table_id = m.table_id;
