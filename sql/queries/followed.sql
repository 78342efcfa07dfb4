-- Tables that join by themselves (mirror_pump/source/catalog/followed.py).

-- name: patterns
SELECT pattern, excluded, profile_name AS profile FROM modak.mirror_followed WHERE slot_name = %(slot)s ORDER BY pattern;

-- name: follow
INSERT INTO modak.mirror_followed (slot_name, pattern, excluded, profile_name)
VALUES (%(slot)s, %(pattern)s, %(excluded)s, %(profile)s)
ON CONFLICT (slot_name, pattern) DO UPDATE SET excluded = EXCLUDED.excluded, profile_name = EXCLUDED.profile_name;

-- name: end
DELETE FROM modak.mirror_followed WHERE slot_name = %(slot)s AND pattern = %(pattern)s;

-- name: new
-- Tables that could join: those that nothing mirrors, that heap retention did not detach, and that were neither unregistered nor
-- refused a moment ago. The longer one is refused, the less often it is tried again.
SELECT c.oid::bigint AS table_id, n.nspname AS schema, c.relname AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname <> ALL (ARRAY['information_schema', 'modak']) AND NOT starts_with(n.nspname, 'pg_')
   -- Nor those of other mirrors' catalogs.
   AND n.oid <> ALL (ARRAY(SELECT k.relnamespace FROM pg_class k
                            WHERE k.relname = 'mirror_migrations' AND starts_with(k.relnamespace::regnamespace::text || '_', 'modak_')))
   AND NOT EXISTS (SELECT FROM modak.mirror_tables m WHERE m.table_id = c.oid::bigint)
   AND NOT EXISTS (SELECT FROM modak.partitions p WHERE p.relation_id = c.oid::bigint)
   AND NOT EXISTS (SELECT FROM modak.mirror_not_joined j
                    WHERE j.table_id = c.oid::bigint
                      AND (j.error IS NULL
                           OR clock_timestamp() < j.looked_at + least(interval '10 minutes',
                                                                      greatest(interval '10 seconds', j.looked_at - j.since))))
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'e')
 ORDER BY 2, 3;

-- name: refused
INSERT INTO modak.mirror_not_joined (table_id, slot_name, error) VALUES (%(table_id)s, %(slot)s, %(error)s)
ON CONFLICT (table_id) DO UPDATE SET error = EXCLUDED.error, looked_at = clock_timestamp();

-- name: left_alone
-- A table that was unregistered does not join again by itself.
INSERT INTO modak.mirror_not_joined (table_id, slot_name)
SELECT m.table_id, m.slot_name FROM modak.mirror_tables m
 WHERE m.table_id = %(table_id)s AND EXISTS (SELECT FROM modak.mirror_followed f WHERE f.slot_name = m.slot_name)
ON CONFLICT (table_id) DO UPDATE SET error = NULL;

-- name: stay_away
SELECT table_id FROM modak.mirror_not_joined WHERE slot_name = %(slot)s AND error IS NULL;

-- name: joined
DELETE FROM modak.mirror_not_joined WHERE table_id = %(table_id)s;

-- name: forget
-- What was dropped, or belongs to no pattern any more.
DELETE FROM modak.mirror_not_joined j
 WHERE j.slot_name = %(slot)s
   AND (NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = j.table_id::oid)
        OR j.error IS NOT NULL AND NOT EXISTS (SELECT FROM modak.mirror_followed f WHERE f.slot_name = j.slot_name));

-- name: not_joined
SELECT n.nspname AS schema, c.relname AS name, j.error
  FROM modak.mirror_not_joined j JOIN pg_class c ON c.oid = j.table_id::oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE j.slot_name = %(slot)s AND j.error IS NOT NULL
   AND NOT EXISTS (SELECT FROM modak.mirror_tables m WHERE m.table_id = j.table_id)
 ORDER BY 1, 2;
