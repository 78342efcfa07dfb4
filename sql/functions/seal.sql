-- Sealing: a partition's first step out of the heap. From its seal on, its changes are captured, so that they can become
-- corrections when the cut-line passes the partition.

-- Seals a partition. Returns NULL, or why it cannot be sealed. The lock ensures that every transaction that writes to the
-- partition has either committed before the trigger is in place, or has its changes captured. Discards changes that an
-- earlier attempt captured.
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
    -- Before the lock for which writers wait.
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', name);
    PERFORM modak.make_held_function(partition.relation_id::oid, n.tier, n.keys)
       FROM modak.key_numbers(id::oid, partition.relation_id::oid) n;
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

-- Makes a partition hot again if it is no longer due. Returns NULL, or why that is not possible. Discards captured changes: as
-- long as the cut-line has not passed the partition, the stream has all of them. Disables the triggers and does not drop
-- them, as a drop would block readers.
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

-- Whether so many changes of a partition were captured since its seal that writers would have to wait too long while the
-- cut-line passes it.
CREATE OR REPLACE FUNCTION modak.captured_too_many(partition modak.partitions) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) > partition.capture_limit
  FROM (SELECT FROM modak.mirror_captured c
         WHERE c.table_id = partition.table_id AND c.partition_id = partition.partition_id AND c.version > coalesce(partition.captured_after, -1)
         LIMIT partition.capture_limit + 1) c
$$;

REVOKE EXECUTE ON FUNCTION modak.seal(bigint, text), modak.unseal(bigint, text) FROM PUBLIC;
