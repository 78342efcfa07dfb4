-- Late partitions: those that come below the cut-line, made or attached by any role. The stream's rows below the cut-line are not
-- the lake's, and readers take rows below it from the lake and modak.delta alone, so what comes in such a partition has to become
-- corrections:
--
-- 1. Where there are event triggers, the command itself installs the partition's triggers, before any statement can write to it.
--    `modak.advance()` locks the DEFAULT partition, and so does each command that adds a partition, until its transaction ends:
--    whichever comes first, the other one sees it.
-- 2. The pump's look does that for all others: without event triggers, and for transactions whose snapshot is older than the cut-line.
-- 3. What the partition held then becomes corrections at that look, under a lock that keeps writers out. It replaces the lake's rows
--    of the same keys, as an INSERT below the cut-line does. The lake's other rows stay.
-- 4. Until then modak.late_partition() names the partition, and readers refuse to read across the cut-line.
-- 5. The catalog has the attachment and the trigger since which all this holds (partitions.proven_as). A partition that was detached
--    for a while, or whose trigger was off, even within one transaction, is named too, and the look makes what it holds corrections.
--
-- So each row that is committed in it is readable, or a read says that it is not. Between a command without event triggers and the
-- look, two things go unnoticed: a row that is both inserted and deleted there, or moved elsewhere, does not replace the lake's; and
-- rows that their owner takes away with the partition do not stay in the lake.

-- A partition's attachment, as the mark of one that is not watched yet (partitions.proven_as).
CREATE OR REPLACE FUNCTION modak.attachment(leaf oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('%s - %s', i.inhparent, i.xmin) FROM pg_inherits i WHERE i.inhrelid = leaf AND NOT i.inhdetachpending
$$;

-- Enters a partition in the catalog, and returns its partition_id. `why`: the reason that `status` shows.
CREATE OR REPLACE FUNCTION modak.enter_partition(id bigint, leaf bigint, name text, lo bigint, hi bigint, entered_as text, why text)
RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO modak.partitions (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id, reason, truncated, advanced_xid,
                              proven_as)
SELECT id,
       name || CASE WHEN EXISTS (SELECT FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = name)
                    THEN ' #' || leaf ELSE '' END,
       -- The lake may have more rows in a late partition's range.
       lo, hi, entered_as, leaf, why, entered_as = 'tiering',
       CASE WHEN entered_as = 'tiering' THEN pg_current_xact_id()::text::bigint END, modak.attachment(leaf::oid)
ON CONFLICT (table_id, partition_id) DO UPDATE
   SET tier_key_lo = excluded.tier_key_lo, tier_key_hi = excluded.tier_key_hi, state = excluded.state,
       relation_id = excluded.relation_id, reason = excluded.reason, truncated = excluded.truncated, sealed_lsn = NULL,
       advanced_xid = excluded.advanced_xid, proven_as = excluded.proven_as, disproved_at = NULL, gone_as = NULL, updated_at = now()
RETURNING partition_id
$$;

-- Whether the catalog has not entered a partition: a new one.
CREATE OR REPLACE FUNCTION modak.is_unrecorded(id bigint, leaf oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT NOT EXISTS (SELECT FROM pg_partitioned_table t WHERE t.partdefid = leaf)
   AND NOT EXISTS (SELECT FROM modak.partitions p
                    WHERE p.table_id = id AND p.relation_id = leaf::bigint AND p.state <> 'dropped')
$$;

-- Attached partitions that are not as the catalog has them: it has not entered them, they were attached again since, or, below the
-- cut-line, their trigger was off (partitions.proven_as; an earlier release has noted nothing before its proof). For each read, so
-- it calls little.
CREATE OR REPLACE FUNCTION modak.unfollowed(id bigint) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT i.inhrelid
  FROM pg_inherits i
  LEFT JOIN modak.partitions p ON p.table_id = id AND p.relation_id = i.inhrelid::bigint AND p.state <> 'dropped'
  LEFT JOIN pg_trigger t ON t.tgrelid = i.inhrelid AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
 CROSS JOIN LATERAL string_to_array(p.proven_as, ' ') AS n(noted)
 WHERE i.inhparent = id::oid
   AND CASE WHEN p.table_id IS NULL THEN NOT EXISTS (SELECT FROM pg_partitioned_table d WHERE d.partdefid = i.inhrelid)
            WHEN (n.noted[1], n.noted[3]) <> (i.inhparent::text, i.xmin::text) THEN true
            WHEN p.state IN ('hot', 'sealing') THEN false
            WHEN n.noted IS NULL THEN NOT modak.retained_by(i.inhrelid, 'cold')
            ELSE (n.noted[4], n.noted[5]) IS DISTINCT FROM (t.oid::text, t.xmin::text) END
$$;

-- Parts a partition from what the catalog has of it, since its owner has attached it with other bounds: what was there has gone, and
-- this is a new one. Its changes are corrections only below the cut-line. Disables the triggers as modak.unseal() does.
CREATE OR REPLACE FUNCTION modak.release_partition(id bigint, held_by text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf oid;
BEGIN
    SELECT p.relation_id INTO leaf FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by FOR UPDATE;
    UPDATE modak.partitions SET relation_id = NULL, updated_at = now() WHERE table_id = id AND partition_id = held_by;
    IF modak.retained_by(leaf, 'cold')
       AND EXISTS (SELECT FROM modak.tier_partitions(id::oid) a WHERE a.relation = leaf AND a.hi > modak.moved_cut(id)) THEN
        PERFORM modak.retain_triggers(id::oid, leaf, held_by, 'capture');
        EXECUTE format('ALTER TABLE %s DISABLE TRIGGER zz_modak_row, DISABLE TRIGGER zz_modak_truncate', leaf::regclass);
    END IF;
END $$;

-- Enters a late partition with its bounds, and makes its later changes corrections. Does nothing for any other partition. The caller
-- keeps writers out until its transaction ends. Without rows nothing is left to be done (sealed_lsn: modak.correct_late()). Skips a
-- table whose registration is being changed: the next look comes soon.
CREATE OR REPLACE FUNCTION modak.take_late(id bigint, leaf oid, lo bigint, hi bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held_by text;
BEGIN
    PERFORM FROM modak.mirror_tables m WHERE m.table_id = id AND m.retention IS NOT NULL FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT modak.enter_partition(id, leaf::bigint, format('%I.%I', n.nspname, c.relname), lo, hi, 'tiering',
                                 'attached below the cut-line: what it held then is not in the lake')
      INTO held_by
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = leaf AND c.relkind = 'r' AND hi <= modak.moved_cut(id) AND modak.is_unrecorded(id, leaf);
    IF held_by IS NULL THEN
        RETURN;
    END IF;
    PERFORM modak.retain_triggers(id::oid, leaf, held_by, 'cold');
    UPDATE modak.partitions SET proven_as = modak.watch_mark(leaf) WHERE table_id = id AND partition_id = held_by;
    IF pg_relation_size(leaf) = 0 THEN
        PERFORM modak.corrected_late(id, held_by);
    END IF;
END $$;

-- The same of all partitions that a command `touched`, for its event trigger: users wait meanwhile. What cannot be done now is left to
-- the look.
CREATE OR REPLACE FUNCTION modak.take_touched(id bigint, touched oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    partition record;
    cut CONSTANT bigint := (SELECT modak.moved_cut(id) FROM modak.mirror_tables m WHERE m.table_id = id AND m.retention IS NOT NULL);
BEGIN
    IF cut IS NULL THEN
        RETURN;
    END IF;
    FOR partition IN
        SELECT a.relation, a.lo, a.hi, p.partition_id
          FROM modak.tier_partitions(id::oid) a
          LEFT JOIN modak.partitions p ON p.table_id = id AND p.relation_id = a.relation::bigint AND p.state <> 'dropped'
         WHERE NOT a.is_default AND (a.relation = ANY (touched) OR id::oid = ANY (touched))
           AND (a.hi <= cut OR p.state IN ('tiering', 'tiered'))
           AND (p.tier_key_lo, p.tier_key_hi) IS DISTINCT FROM (a.lo, a.hi)
    LOOP
        BEGIN
            -- mirror_ddl() notes the shape once, not for each trigger.
            PERFORM set_config('modak.watching', secret, true) FROM modak.mirror_secret;
            IF partition.partition_id IS NOT NULL THEN
                PERFORM modak.release_partition(id, partition.partition_id);
            END IF;
            PERFORM modak.take_late(id, partition.relation, partition.lo, partition.hi);
            PERFORM set_config('modak.watching', '', true);
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;

-- Notes that the lake and modak.delta have all rows of a late partition.
CREATE OR REPLACE FUNCTION modak.corrected_late(id bigint, held_by text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
UPDATE modak.partitions
   SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint, updated_at = now(),
       proven_as = modak.watch_mark(relation_id::oid),
       reason = 'attached below the cut-line: its rows came into the lake as corrections'
 WHERE table_id = id AND partition_id = held_by
$$;

-- Notes that the lake and modak.delta may lack rows of a partition that they had: it was detached for a while, or its trigger was off.
-- What its owner took from it meanwhile stays in the lake if it was detached. If not, or if the heap keeps all rows, its proof asks
-- for it.
CREATE OR REPLACE FUNCTION modak.unwatched(id bigint, held_by text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf CONSTANT oid := (SELECT p.relation_id FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by);
BEGIN
    IF NOT modak.retained_by(leaf, 'cold') THEN
        PERFORM modak.retain_triggers(id::oid, leaf, held_by, 'cold');
    END IF;
    UPDATE modak.partitions
       SET state = 'tiering', proven_at = NULL, sealed_lsn = NULL, disproved_at = NULL, proven_as = modak.watch_mark(leaf),
           truncated = truncated OR NOT modak.keeps_heap(id)
                       AND coalesce(split_part(proven_as, ' ', 3) <> split_part(modak.watch_mark(leaf), ' ', 3), false),
           updated_at = now(), reason = 'detached for a while, or changed without its trigger zz_modak_row: the lake may lack rows of it'
     WHERE table_id = id AND partition_id = held_by AND state IN ('tiering', 'tiered');
END $$;

-- Makes the rows of a late partition corrections. Returns whether it has. Not those below the retention line, nor more than
-- `most_bytes`, but for a table that keeps its heap: the partition is compared with the lake, which may have them. None while more
-- than that waits for a fold: readers have all corrections in memory.
CREATE OR REPLACE FUNCTION modak.correct_late(id bigint, held_by text, most_bytes bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    leaf oid;
BEGIN
    SELECT p.relation_id::oid INTO leaf
      FROM modak.partitions p JOIN modak.cutline c USING (table_id)
      JOIN modak.tier_partitions(id::oid) a ON a.relation = p.relation_id::oid
     WHERE p.table_id = id AND p.partition_id = held_by AND p.state = 'tiering' AND p.sealed_lsn IS NULL
       AND (modak.keeps_heap(id) AND p.truncated OR pg_table_size(a.relation) <= most_bytes AND (p.tier_key_lo < c.retention_line) IS NOT TRUE)
       AND (SELECT coalesce(sum(pg_column_size(d.payload)), 0) FROM modak.delta d
             WHERE d.table_id = id AND d.folded_sequence IS NULL) <= most_bytes;
    IF leaf IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', leaf::regclass);
    IF NOT modak.retained_by(leaf, 'cold') THEN
        RETURN false;
    END IF;
    PERFORM modak.put_partition(id, leaf, 0::smallint);
    PERFORM modak.corrected_late(id, held_by);
    RETURN true;
END $$;

-- A partition that reaches below the cut-line, and not only below the retention line, with rows that the lake and modak.delta may
-- lack; NULL if there is none. For readers, which have no rights on modak.partitions. Of a table that is not mirrored it evaluates
-- nothing. The pump enters no partition that lies across the cut-line or is not a table. Bounds are read last: that waits for
-- sessions that alter a partition.
CREATE OR REPLACE FUNCTION modak.late_partition(id bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cut CONSTANT bigint := modak.moved_cut(id);
    line CONSTANT bigint := (SELECT c.retention_line FROM modak.cutline c WHERE c.table_id = id);
BEGIN
    IF cut IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN min(u.leaf::regclass::text)
      FROM (SELECT modak.unfollowed(id)
            UNION ALL SELECT p.relation_id::oid FROM modak.partitions p
                       WHERE p.table_id = id AND p.state = 'tiering' AND p.sealed_lsn IS NULL) AS u(leaf)
     WHERE EXISTS (SELECT FROM pg_partition_tree(u.leaf) t JOIN pg_class c ON c.oid = t.relid
                    WHERE c.relkind = 'f' OR pg_relation_size(c.oid) > 0)
       AND EXISTS (SELECT FROM modak.tier_partitions(id::oid) a
                    WHERE a.relation = u.leaf AND NOT a.is_default AND a.lo < cut
                      AND a.hi > coalesce(line, -9223372036854775808));
END $$;

REVOKE EXECUTE ON FUNCTION modak.enter_partition(bigint, bigint, text, bigint, bigint, text, text), modak.take_late(bigint, oid, bigint, bigint),
    modak.take_touched(bigint, oid[]), modak.corrected_late(bigint, text), modak.unwatched(bigint, text), modak.release_partition(bigint, text),
    modak.correct_late(bigint, text, bigint) FROM PUBLIC;
