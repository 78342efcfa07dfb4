-- Moves the cut-line of a table with heap retention past a partition. From then on the partition's rows belong to the lake,
-- and changes of them are corrections. This is part of the publish whose snapshot holds every row below the new cut-line as
-- of its frontier.

-- Locks what must not change while the cut-line passes a partition, subject to lock_timeout: the DEFAULT partition, so that
-- no partition is added, and the partition against writers, so that the captured changes are complete. `name` is NULL for a
-- partition that is no longer attached. `reason` says why a lock was not obtained.
CREATE OR REPLACE FUNCTION modak.lock_to_advance(partition modak.partitions, OUT name text, OUT reason text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    root CONSTANT oid := partition.table_id;
    default_partition text;
BEGIN
    FOR default_partition IN SELECT p.relation::regclass::text FROM modak.tier_partitions(root) p WHERE p.is_default LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', default_partition);
    END LOOP;
    IF NOT FOUND THEN
        reason := 'the table has no DEFAULT partition, whose lock keeps new partitions out';
        RETURN;
    END IF;
    SELECT p.relation::regclass::text INTO name FROM modak.tier_partitions(root) p
     WHERE p.relation = partition.relation_id::oid;
    IF name IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', name);
    IF NOT EXISTS (SELECT FROM modak.tier_partitions(root) p
                    WHERE p.relation = partition.relation_id::oid AND p.relation::regclass::text = name) THEN
        reason := format('partition %s was altered meanwhile', partition.partition_id);
    END IF;
END $$;

-- Why the files of a tiered partition's chunks may not be what the lake needs; NULL if they are. Every row of the partition has to
-- be in them, or was changed and captured since. So the chunks were read from the heap's present file, since changes are captured
-- as they are now: another file means that the partition was truncated, or rewritten in another order or with other values.
CREATE OR REPLACE FUNCTION modak.not_copied(partition modak.partitions) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT bool_and(c.done_at IS NOT NULL AND c.captured_after = partition.captured_after
                        AND c.relation_id = partition.relation_id
                        AND c.filenode = pg_relation_filenode(partition.relation_id::oid)::bigint)
          FROM modak.partition_chunks c
         WHERE c.table_id = partition.table_id AND c.partition_id = partition.partition_id) IS NOT TRUE THEN
        RETURN format('partition %s is not copied as it is now', partition.partition_id);
    ELSIF NOT modak.columns_followed(partition.table_id) THEN
        RETURN 'the mirror has not followed a change of the table''s columns yet';
    END IF;
    RETURN NULL;
END $$;

-- Whether the mirror knows the columns that a table has, without those that its user left out.
CREATE OR REPLACE FUNCTION modak.columns_followed(id bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT NOT EXISTS (
    SELECT FROM modak.mirror_tables m
     CROSS JOIN LATERAL (
           SELECT FROM jsonb_to_recordset(m.columns) AS c(attnum int, name text, type_oid bigint, type_modifier int)
             FULL JOIN (SELECT a.attnum::int, a.attname, a.atttypid, a.atttypmod FROM pg_attribute a
                         WHERE a.attrelid = m.table_id::oid AND a.attnum > 0 AND NOT a.attisdropped
                           AND (a.attgenerated = '' OR a.attgenerated = 's' AND modak.mirror_sends_generated(a.attrelid))
                           AND NOT EXISTS (SELECT FROM jsonb_to_recordset(m.excluded) AS e(attnum int)
                                            WHERE e.attnum = a.attnum)) p ON p.attnum = c.attnum
            WHERE (c.name, c.type_oid, c.type_modifier) IS DISTINCT FROM (p.attname::text, p.atttypid::bigint, p.atttypmod)) d
     WHERE m.table_id = id)
$$;

-- Why the cut-line may not pass a partition in its recorded state, read under the locks; NULL if it may. `attached`: it is
-- still a partition.
CREATE OR REPLACE FUNCTION modak.not_ready(partition modak.partitions, attached boolean, frontier bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT attached AND partition.gone_as IS DISTINCT FROM modak.gone_mark(partition.relation_id::oid) THEN
        -- The frontier has to pass everything that was written to the partition while it was attached. sealed_lsn is behind
        -- that only after the mirror has noticed that the partition is detached.
        RETURN format('partition %s was altered meanwhile', partition.partition_id);
    ELSIF partition.sealed_lsn IS NULL THEN
        RETURN format('partition %s is not sealed', partition.partition_id);
    ELSIF modak.streams(partition.table_id) AND partition.sealed_lsn > frontier THEN
        RETURN format('the frontier has not passed the position at which partition %s was sealed', partition.partition_id);
    ELSIF attached AND (partition.state <> 'sealing' OR NOT modak.retained_by(partition.relation_id::oid, 'capture')) THEN
        RETURN format('changes of partition %s are not captured', partition.partition_id);
    ELSIF attached AND modak.captured_too_many(partition) THEN
        RETURN format('more than %s changes of partition %s were captured', partition.capture_limit, partition.partition_id);
    ELSIF NOT EXISTS (SELECT FROM modak.mirror_tables m
                       WHERE m.table_id = partition.table_id AND m.state = 'live'
                         AND m.start_lsn <= partition.sealed_lsn) THEN
        RETURN format('the table is being copied, or was since partition %s was sealed', partition.partition_id);
    ELSIF attached AND NOT modak.streams(partition.table_id) THEN
        RETURN modak.not_copied(partition);
    END IF;
    RETURN NULL;
END $$;

-- The partitions that the cut-line has to pass before this one; NULL if there are none.
CREATE OR REPLACE FUNCTION modak.passed_first(partition modak.partitions, cut bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('partition %s comes first', string_agg(p.relation::regclass::text, ', '))
      FROM modak.tier_partitions(partition.table_id::oid) p
     WHERE NOT p.is_default AND p.lo < cut AND p.relation <> partition.relation_id::oid
       AND NOT EXISTS (SELECT FROM modak.partitions k
                        WHERE k.table_id = partition.table_id AND k.relation_id = p.relation::bigint
                          AND k.state IN ('tiering', 'tiered'))
    HAVING count(*) > 0;
END $$;

-- Prevents new pins until the end of the transaction. Returns a reader that the cut-line must not overtake, or NULL. A
-- reader takes every correction of the table as one of a row below its cut-line. If the cut-line passed a partition during
-- its pin, it would find the partition's corrected rows both in the heap and in the delta. Readers that read in one database
-- snapshot are not affected.
CREATE OR REPLACE FUNCTION modak.lock_pins(id bigint, cut bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Waits for pins that are not visible yet.
    LOCK TABLE modak.read_pin_rows IN SHARE MODE;
    RETURN modak.pin_below(id, cut, false);
EXCEPTION WHEN lock_not_available THEN
    RETURN format('%s is putting a pin in place', coalesce(modak.pinning(), 'a session'));
END $$;

-- Turns a partition's captured changes into corrections, like put_delta(), but all at once, since writers wait meanwhile. Not
-- those of the versions that the publish itself `brought`: their rows come with its snapshot. A change that came after these were
-- read gave its key another version.
CREATE OR REPLACE FUNCTION modak.captured_to_delta(partition modak.partitions, brought bigint[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
SELECT m.table_id, m.pk, m.op, m.tier_key, nextval('modak.delta_version'), m.payload
  FROM (SELECT * FROM modak.mirror_captured c
         WHERE c.table_id = partition.table_id AND c.partition_id = partition.partition_id
           AND c.version > coalesce(partition.captured_after, -1)
           AND NOT EXISTS (SELECT FROM unnest(brought) AS b(version) WHERE b.version = c.version)
         ORDER BY c.version) m
ON CONFLICT (table_id, pk) DO UPDATE
   SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
       payload = excluded.payload, updated_at = now(), folded_sequence = NULL
$$;

-- Moves the cut-line past a partition, to `cut`, within the publish that moves the frontier to `frontier`. Returns NULL, or
-- why that is not possible. `brought`: versions of captured changes that the publish brings. Its locks last until the end of the
-- transaction.
CREATE OR REPLACE FUNCTION modak.advance(id bigint, held_by text, cut bigint, frontier bigint, brought bigint[] DEFAULT '{}')
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition modak.partitions;
    name text;
    reason text;
BEGIN
    SELECT * INTO partition FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by;
    IF NOT FOUND OR partition.state NOT IN ('hot', 'sealing') OR partition.tier_key_hi IS DISTINCT FROM cut THEN
        RETURN format('partition %s is not waiting for the cut-line to reach %s', held_by, cut);
    END IF;
    SELECT l.name, l.reason INTO name, reason FROM modak.lock_to_advance(partition) l;
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    SELECT * INTO partition FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by FOR UPDATE;
    reason := coalesce(modak.not_ready(partition, name IS NOT NULL, frontier), modak.passed_first(partition, cut),
                       modak.lock_pins(id, cut));
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    UPDATE modak.cutline SET tier_key_hi = cut, updated_at = now() WHERE table_id = id AND tier_key_hi < cut;
    IF NOT FOUND THEN
        RETURN format('the cut-line has passed %s already', cut);
    END IF;
    IF name IS NOT NULL THEN
        PERFORM modak.retain_triggers(id::oid, partition.relation_id::oid, held_by, 'cold');
        PERFORM modak.captured_to_delta(partition, brought);
    END IF;
    -- The many changes of a long copy are removed afterwards (forget_captured): now, writers of the partition wait.
    DELETE FROM modak.mirror_captured c WHERE c.table_id = id AND c.partition_id = held_by AND brought = '{}';
    DELETE FROM modak.partition_chunks c WHERE c.table_id = id AND c.partition_id = held_by;
    UPDATE modak.partitions
       SET state = CASE WHEN name IS NULL THEN 'dropped' ELSE 'tiering' END, updated_at = now(), attempts = 0,
           advanced_xid = pg_current_xact_id()::text::bigint, proven_as = modak.watch_mark(partition.relation_id::oid),
           -- What the lake keeps of a former partition, it alone has.
           truncated = truncated OR EXISTS (SELECT FROM modak.mirror_tables m
                                             WHERE m.table_id = id AND m.kept_ranges && int8range(partition.tier_key_lo, cut)),
           reason = CASE WHEN name IS NULL THEN coalesce(partitions.reason, 'not dropped by the mirror') END
     WHERE table_id = id AND partition_id = held_by;
    RETURN NULL;
END $$;

-- Gives the cut-line of a tiered table its first value, `cut`, within the publish that brings the first rows below it. Returns NULL,
-- or why that is not possible. Its locks last until the end of the transaction.
--
-- The heap has no row below `cut`, and gets none: no partition reaches below it, none can be attached before the commit, and the
-- DEFAULT partition's trigger refuses such rows as long as it sees no cut-line, and makes corrections of them as soon as it sees this
-- one. So everything below `cut` is what the publish brings.
CREATE OR REPLACE FUNCTION modak.begin_cutline(id bigint, cut bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    default_partition CONSTANT oid := (SELECT p.relation FROM modak.tier_partitions(id::oid) p WHERE p.is_default);
    reason text;
BEGIN
    IF modak.streams(id) OR modak.keeps_heap(id) OR default_partition IS NULL THEN
        RETURN 'the cut-line of this table moves with its partitions only';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', default_partition::regclass);
    IF NOT modak.retained_by(default_partition, 'default') THEN
        RETURN format('%s does not route rows: the pump has to install its trigger', default_partition::regclass);
    END IF;
    SELECT format('partition %s reaches below the rows in the heap', string_agg(p.relation::regclass::text, ', ')) INTO reason
      FROM modak.tier_partitions(id::oid) p WHERE NOT p.is_default AND p.lo < cut HAVING count(*) > 0;
    reason := coalesce(reason, modak.lock_pins(id, cut));
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    UPDATE modak.cutline SET tier_key_hi = cut, updated_at = now() WHERE table_id = id AND modak.moved_cut(id) IS NULL;
    IF NOT FOUND THEN
        RETURN 'the cut-line has moved meanwhile';
    END IF;
    -- Those that were detached: the cut-line does not have to pass them any more.
    UPDATE modak.partitions p
       SET state = 'dropped', updated_at = now(), attempts = 0, advanced_xid = pg_current_xact_id()::text::bigint,
           reason = coalesce(p.reason, 'not dropped by the mirror')
     WHERE p.table_id = id AND p.state IN ('hot', 'sealing') AND p.tier_key_hi <= cut;
    RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION modak.lock_to_advance(modak.partitions), modak.lock_pins(bigint, bigint),
    modak.captured_to_delta(modak.partitions, bigint[]), modak.advance(bigint, text, bigint, bigint, bigint[]),
    modak.begin_cutline(bigint, bigint) FROM PUBLIC;
