-- Tables without a key (mirror_pump/pipeline/copy/copy_snapshots.py).

-- Keeps writers out of a table without a key that is to be copied, and of its partitions, until the transaction ends. Returns
-- the file of its heap, 0 for a partitioned table; NULL if it is no such table, or was renamed meanwhile. Runs as the owner of
-- schema modak: the pump's own role may only read tables, and the lock takes more.
CREATE OR REPLACE FUNCTION modak.mirror_hold(id bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    SELECT c.oid::regclass::text INTO name
      FROM modak.mirror_tables m JOIN pg_class c ON c.oid = m.table_id::oid
     WHERE m.table_id = id AND m.key = '{}' AND m.state = 'copying' AND c.relkind IN ('r', 'p');
    IF name IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE MODE', name);
    RETURN (SELECT coalesce(pg_relation_filenode(c.oid)::bigint, 0) FROM pg_class c
             WHERE c.oid = id::oid AND c.oid = to_regclass(name));
END $$;

REVOKE EXECUTE ON FUNCTION modak.mirror_hold(bigint) FROM PUBLIC;
