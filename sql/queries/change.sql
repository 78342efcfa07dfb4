-- Schema changes in the publish transaction (mirror_pump/pipeline/operations/catalog_changes.py).

-- name: store
-- `former` and `state` are a transition that mirror_pump/table_life.py allows.
-- `partition_fields`: a copy is divided by them. NULL: as before. The order of rows is a matter of `register --alter` alone.
-- Chunks of tiered partitions were read with the former columns, and are read again.
WITH seam AS (
    UPDATE modak.tables
       SET primary_key_cols = %(key)s, tier_key_col = %(tier_key)s, tier_key_type = %(tier_key_type)s,
           partition_scheme = CASE WHEN %(partition_fields)s::jsonb IS NULL THEN partition_scheme
                                   ELSE jsonb_build_object('fields', %(partition_fields)s::jsonb,
                                                           'order', coalesce(partition_scheme -> 'order', '[]')) END
     WHERE table_id = %(table_id)s),
chunks AS (DELETE FROM modak.partition_chunks WHERE table_id = %(table_id)s)
UPDATE modak.mirror_tables
   SET columns = %(columns)s, key = %(key)s, next_field_id = %(next_field_id)s, shape = %(shape)s::jsonb,
       excluded = %(excluded)s,
       start_lsn = %(start_lsn)s, error = %(error)s,
       state = %(state)s,
       where_different = CASE WHEN %(copy_again)s THEN %(where_different)s ELSE where_different END,
       dropped_rows = CASE WHEN %(copy_again)s THEN NULL
                           ELSE nullif(coalesce(dropped_rows, '[]') || %(dropped_rows)s, '[]') END,
       live_after_lsn = CASE WHEN %(fills)s AND state NOT IN ('copying', 'waiting') THEN NULL ELSE live_after_lsn END,
       -- The stream's cut-line may be an earlier one.
       kept_ranges = (CASE WHEN %(emptied)s THEN '{}' ELSE kept_ranges END + %(kept)s::text::int8multirange)
                     * (SELECT int8multirange(int8range(l.least, CASE WHEN %(end)s::bigint IS NOT NULL
                                                                      THEN greatest(l.least, %(end)s::bigint) END))
                          FROM modak.cutline c CROSS JOIN LATERAL (SELECT greatest(c.tier_key_hi, %(least)s::bigint) AS least) l
                         WHERE c.table_id = %(table_id)s)
 WHERE table_id = %(table_id)s AND state = %(former)s;

-- name: complete_corrections
-- Corrections that a concurrent transaction captured, which the transaction of the change did not see.
SELECT modak.complete_corrections(%(table_id)s, %(columns)s, false);
