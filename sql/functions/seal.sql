-- Sealing: the first step of a partition's way out of the heap. From its seal on, its changes are captured, so that they
-- can become corrections in the moment in which the cut-line passes it.

-- Why a partition cannot be sealed, or NULL: it is. The lock makes sure that a transaction which wrote to it has committed
-- before the trigger was there, or has its changes captured. What was captured in a former attempt is void.
CREATE OR REPLACE FUNCTION modak.seal(id bigint, held_by text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition modak.partitions;
    name text;
BEGIN
    SELECT * INTO partition FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by;
    SELECT p.relation::regclass::text INTO name FROM modak.tier_partitions(id::oid) p WHERE p.relation = partition.relation_id::oid;
    IF name IS NULL OR partition.state <> 'hot' THEN
        RETURN format('partition %s is not there, or is being sealed', held_by);
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', name);
    PERFORM modak.retain_triggers(id::oid, partition.relation_id::oid, held_by, 'capture');
    UPDATE modak.partitions
       SET state = 'sealing', sealed_lsn = NULL, captured_after = nextval('modak.delta_version'), updated_at = now(),
           attempts = 0, reason = NULL
     WHERE table_id = id AND partition_id = held_by AND relation_id = partition.relation_id AND state = 'hot';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the partition was changed meanwhile';
    END IF;
    RETURN NULL;
END $$;

-- Makes a partition hot again that is not due any more; returns why not, or NULL. What was captured is forgotten: the
-- stream has all of it as long as the cut-line has not passed the partition. The triggers are switched off, not dropped,
-- since that keeps no reader out.
CREATE OR REPLACE FUNCTION modak.unseal(id bigint, held_by text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    SELECT a.relation::regclass::text INTO name
      FROM modak.partitions p JOIN modak.tier_partitions(id::oid) a ON a.relation = p.relation_id::oid
     WHERE p.table_id = id AND p.partition_id = held_by AND p.state IN ('hot', 'sealing')
       AND modak.retained_by(a.relation, 'capture');
    IF name IS NULL THEN
        RETURN format('partition %s is not being sealed', held_by);
    END IF;
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER zz_modak_row, DISABLE TRIGGER zz_modak_truncate', name);
    UPDATE modak.partitions
       SET state = 'hot', sealed_lsn = NULL, updated_at = now(), attempts = 0, reason = NULL
     WHERE table_id = id AND partition_id = held_by AND state IN ('hot', 'sealing')
       AND NOT modak.retained_by(relation_id::oid, 'capture');
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'the partition was changed meanwhile';
    END IF;
    DELETE FROM modak.mirror_captured c WHERE c.table_id = id AND c.partition_id = held_by;
    RETURN NULL;
END $$;

-- Whether so many changes of a partition were captured since its seal that writers would wait too long for the cut-line to
-- pass it.
CREATE OR REPLACE FUNCTION modak.captured_too_many(partition modak.partitions) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) > partition.capture_limit
  FROM (SELECT FROM modak.mirror_captured c
         WHERE c.table_id = partition.table_id AND c.partition_id = partition.partition_id AND c.version > coalesce(partition.captured_after, -1)
         LIMIT partition.capture_limit + 1) c
$$;

REVOKE EXECUTE ON FUNCTION modak.seal(bigint, text), modak.unseal(bigint, text) FROM PUBLIC;
