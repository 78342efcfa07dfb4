-- `mirror-pump register --alter`, `policy set TABLE format_version` (mirror_pump/source/catalog/layout.py).

-- name: store
UPDATE modak.tables SET partition_scheme = %(partition_scheme)s WHERE table_id = %(table_id)s;

-- name: copies_all
-- The next copy cannot keep files that are divided in another way: not even that of a table that is paused now.
UPDATE modak.mirror_tables SET where_different = false WHERE table_id = %(table_id)s;

-- name: head
-- The lake's state stays the one that the mirror has made or examined: its metadata file alone is another.
UPDATE modak.mirror_tables
   SET lake_head = lake_head || jsonb_build_object('location', %(new)s::text, 'format_version', %(format_version)s::integer)
 WHERE table_id = %(table_id)s AND lake_head ->> 'location' = %(old)s;

-- name: copied_again
SELECT staged_location IS NOT NULL FROM modak.mirror_tables WHERE table_id = %(table_id)s;
