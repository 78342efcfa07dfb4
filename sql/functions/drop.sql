-- Dropping: a partition's last step out of the heap, once it is proven that the lake holds its rows.

-- A mark that stays the same while a partition is attached and its changes become corrections without interruption; NULL if
-- they do not. Detaching the partition or a parent of it, and replacing or disabling its trigger, change an xmin, even if
-- they are undone before the commit. VACUUM keeps xmin, also with FREEZE and FULL. A rewrite, whose changes no trigger sees,
-- changes the file. So do VACUUM FULL, CLUSTER and TRUNCATE, which therefore require another proof.
CREATE OR REPLACE FUNCTION modak.watch_mark(leaf oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('%s %s %s %s %s %s', i.inhparent, c.xmin, i.xmin, t.oid, t.xmin, l.relfilenode)
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent JOIN pg_class l ON l.oid = i.inhrelid
  JOIN pg_trigger t ON t.tgrelid = i.inhrelid
 WHERE i.inhrelid = leaf AND NOT i.inhdetachpending AND t.tgname = 'zz_modak_row' AND t.tgenabled = 'A'
   AND modak.retained_by(leaf, 'cold')
$$;

-- A mark that stays the same while a partition is detached or dropped: attaching and detaching change an xmin, and a dropped
-- partition does not return. Each other change of its table's partitions changes the mark too: all partitions that went have gone
-- before the look that has recorded it.
CREATE OR REPLACE FUNCTION modak.gone_mark(leaf oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce((SELECT c.xmin::text FROM pg_class c WHERE c.oid = leaf), 'dropped')
       || coalesce((SELECT ' ' || s.xmin FROM modak.partitions p JOIN modak.mirror_shapes s USING (table_id)
                     WHERE p.relation_id = leaf::bigint LIMIT 1), '')
$$;

-- A foreign key to the whole table by which rows of other tables refer to rows of this partition; NULL if there is none.
-- Ignores tables that the caller may not read: DETACH checks them too.
CREATE OR REPLACE FUNCTION modak.referring_key(root oid, leaf oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    foreign_key record;
    found boolean;
BEGIN
    FOR foreign_key IN
        SELECT k.conname, k.conrelid::regclass AS child,
               (SELECT string_agg(format('c.%I OPERATOR(%I.%s) p.%I%s', f.attname, n.nspname, o.oprname, a.attname,
                                         CASE WHEN a.attcollation <> f.attcollation
                                              THEN format(' COLLATE %s', a.attcollation::regcollation) END), ' AND ')
                  FROM unnest(k.conkey, k.confkey, k.conpfeqop) AS u(mine, theirs, operator)
                  JOIN pg_attribute f ON f.attrelid = k.conrelid AND f.attnum = u.mine
                  JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.theirs
                  JOIN pg_operator o ON o.oid = u.operator JOIN pg_namespace n ON n.oid = o.oprnamespace) AS matched
          FROM pg_constraint k
         WHERE k.contype = 'f' AND k.confrelid = root AND k.conparentid = 0
           AND has_table_privilege(k.conrelid, 'SELECT') AND NOT row_security_active(k.conrelid)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s c JOIN ONLY %s p ON %s)', foreign_key.child, leaf::regclass,
                       foreign_key.matched)
           INTO found;
        IF found THEN
            RETURN format('rows of %s refer to rows of it, by the foreign key %s', foreign_key.child,
                          foreign_key.conname);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- A reader that may still read a partition that the cut-line has passed, since it read the cut-line before; NULL if there is
-- none. Such a reader has a pin, or a pin that is not committed yet, or an older database snapshot. Prevents new pins until
-- the end of the transaction.
CREATE OR REPLACE FUNCTION modak.reader_of(partition modak.partitions) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pin text;
BEGIN
    LOCK TABLE modak.read_pin_rows IN SHARE MODE;
    pin := modak.pin_below(partition.table_id, partition.tier_key_hi, true);
    IF pin IS NOT NULL THEN
        RETURN pin;
    END IF;
    -- Of other roles' sessions, a role without pg_read_all_stats sees neither type nor start, but their snapshot.
    RETURN format('process %s reads a snapshot of %s, from before the cut-line passed the partition', a.pid,
                  coalesce(a.xact_start::text, 'another role'))
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
       AND age(a.backend_xmin) >= age(partition.advanced_xid::text::xid8::xid) ORDER BY a.xact_start LIMIT 1;
END $$;

-- Locks a table and a partition of it in ACCESS EXCLUSIVE mode, by the names that they had. Returns whether they still have
-- these names: a concurrent change has committed once the locks are granted.
CREATE OR REPLACE FUNCTION modak.lock_to_drop(root oid, root_name text, leaf oid, leaf_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', root_name);
    -- From here on all other sessions wait, while this one locks the partition, the DEFAULT partition and referring tables.
    PERFORM set_config('lock_timeout', '50ms', true);
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', leaf_name);
    RETURN to_regclass(root_name) IS NOT DISTINCT FROM root AND to_regclass(leaf_name) IS NOT DISTINCT FROM leaf;
END $$;

-- Detaches a partition and removes our triggers from it. From then on the mirror has nothing to do with it.
CREATE OR REPLACE FUNCTION modak.detach_partition(root oid, leaf oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    trigger_name name;
BEGIN
    EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', root::regclass, leaf::regclass);
    FOR trigger_name IN
        SELECT t.tgname FROM pg_trigger t
         WHERE t.tgrelid = leaf AND t.tgname IN ('zz_modak_row', 'zz_modak_truncate', 'mirror_pump_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, leaf::regclass);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION modak.drop_partition(root oid, leaf oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := leaf::regclass;
BEGIN
    EXECUTE format('DROP TABLE %s', name);
EXCEPTION WHEN dependent_objects_still_exist THEN
    -- A foreign key that refers to the whole table blocks the drop of any partition. DETACH permits it if no row refers to it.
    EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', root::regclass, name);
    EXECUTE format('DROP TABLE %s', name);
END $$;

-- Drops a proven partition, or detaches it (`keep`). Returns NULL, or why that is not possible.
CREATE OR REPLACE FUNCTION modak.drop_proven(id bigint, held_by text, keep boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition modak.partitions;
    root CONSTANT oid := id;
    root_name CONSTANT text := root::regclass;
    leaf oid;
    leaf_name text;
    passed boolean;
    reason text;
BEGIN
    SELECT * INTO partition FROM modak.partitions p WHERE p.table_id = id AND p.partition_id = held_by FOR UPDATE;
    SELECT p.relation, p.relation::regclass, (p.lo, p.hi) = (partition.tier_key_lo, partition.tier_key_hi) INTO leaf, leaf_name, passed
      FROM modak.tier_partitions(root) p WHERE p.relation = partition.relation_id::oid;
    IF leaf IS NULL OR partition.state IS DISTINCT FROM 'tiered' THEN
        RETURN format('partition %s is not there, or is not proven', held_by);
    ELSIF NOT passed THEN
        -- It may be above the cut-line. Under the locks its attachment is that of a proof from before this look (proven_as).
        RETURN 'it was attached again, with other bounds than the cut-line has passed';
    END IF;
    -- DETACH checks foreign keys as well, but while other sessions are locked out.
    reason := coalesce(modak.referring_key(root, leaf), modak.reader_of(partition));
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    IF NOT modak.lock_to_drop(root, root_name, leaf, leaf_name) THEN
        RETURN format('partition %s was altered meanwhile', held_by);
    ELSIF NOT modak.streams(id) AND NOT modak.columns_followed(id) THEN
        -- What it holds in new columns may be nowhere else.
        RETURN 'the mirror has not followed a change of the table''s columns yet';
    ELSIF modak.watch_mark(leaf) IS DISTINCT FROM partition.proven_as OR partition.proven_as IS NULL THEN
        IF NOT modak.retained_by(leaf, 'cold') THEN
            PERFORM modak.retain_triggers(root, leaf, held_by, 'cold');
        END IF;
        UPDATE modak.partitions SET state = 'tiering', proven_at = NULL WHERE table_id = id AND partition_id = held_by;
        RETURN 'it was altered since it was proven, or its trigger zz_modak_row switched off: it is proven again';
    END IF;
    IF keep THEN
        PERFORM modak.detach_partition(root, leaf);
    ELSE
        PERFORM modak.drop_partition(root, leaf);
    END IF;
    UPDATE modak.partitions
       SET state = 'dropped', updated_at = now(), attempts = 0,
           reason = CASE WHEN keep THEN 'detached: it is a table of its own now' END
     WHERE table_id = id AND partition_id = held_by;
    RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION modak.reader_of(modak.partitions), modak.lock_to_drop(oid, text, oid, text), modak.detach_partition(oid, oid),
    modak.drop_partition(oid, oid), modak.drop_proven(bigint, text, boolean) FROM PUBLIC;
