-- Tier keys: the values of the column by which a table with heap retention is partitioned, as bigint.

-- The tier value of a tier key, as the catalog stores it: integers unchanged, times in microseconds and dates in days since
-- 1970-01-01 (in UTC; a timestamp as if it were in UTC). Infinities become the lowest and the highest bigint.
CREATE OR REPLACE FUNCTION modak.tier_value(value bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT value';
CREATE OR REPLACE FUNCTION modak.tier_value(value timestamp) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE value WHEN 'infinity' THEN 9223372036854775807 WHEN '-infinity' THEN '-9223372036854775808'::bigint
            ELSE least(extract(epoch FROM value) * 1000000, 9223372036854775806)::bigint END
$$;
CREATE OR REPLACE FUNCTION modak.tier_value(value timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT modak.tier_value(value AT TIME ZONE 'UTC')
$$;
CREATE OR REPLACE FUNCTION modak.tier_value(value date) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE value WHEN 'infinity' THEN 9223372036854775807 WHEN '-infinity' THEN '-9223372036854775808'::bigint
            ELSE (value - date '1970-01-01')::bigint END
$$;

-- The cut-line, or NULL while no row can be below it: the cut-line of a time key starts at the year 1
-- (mirror_pump.model.Tier.moved).
CREATE OR REPLACE FUNCTION modak.moved_cut(id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT c.tier_key_hi FROM modak.cutline c JOIN modak.tables t USING (table_id)
 WHERE c.table_id = id
   AND c.tier_key_hi > CASE WHEN t.tier_key_type = 'date' THEN -719162
                            WHEN t.tier_key_type LIKE 'timestamp%' THEN -62135596800000000
                            ELSE -9223372036854775808 END
$$;

-- The tier values above the cut-line at which the lake may have rows that the heap has not, because a partition went there. NULL: none.
CREATE OR REPLACE FUNCTION modak.kept_above(id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT nullif(m.kept_ranges * int8multirange(int8range(c.tier_key_hi, NULL)), '{}')::text
  FROM modak.mirror_tables m JOIN modak.cutline c USING (table_id) WHERE m.table_id = id
$$;

-- The same; or the partitions that went above the cut-line, if the mirror has not come to their going yet.
CREATE OR REPLACE FUNCTION modak.only_in_lake(id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(modak.kept_above(id), (
    SELECT string_agg(p.partition_id, ', ' ORDER BY p.tier_key_lo) FROM modak.partitions p
     WHERE p.table_id = id AND p.state IN ('hot', 'sealing') AND modak.streams(id)
       AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = p.table_id::oid AND i.inhrelid = p.relation_id::oid)))
$$;

-- Whether a tier value stands for infinity, which the lake cannot hold. For rows above the cut-line the pump detects it.
CREATE OR REPLACE FUNCTION modak.is_infinite(id bigint, tier bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT tier = -9223372036854775808
       AND EXISTS (SELECT FROM modak.tables t WHERE t.table_id = id AND t.tier_key_type <> 'bigint')
$$;

-- The partitions of a table that is partitioned by range of one column, with their bounds as tier values. Waits for sessions
-- that alter the table or a partition, because Postgres locks a partition to print its bounds.
CREATE OR REPLACE FUNCTION modak.tier_partitions(root oid) RETURNS TABLE (relation oid, lo bigint, hi bigint, is_default boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET timezone = 'UTC' AS $$
DECLARE
    bound text;
    parts text[];
    -- A domain's base type: the domain's checks would run with the caller's rights.
    type text := (WITH RECURSIVE reduced(type, base) AS (
                      SELECT t.oid, t.typbasetype FROM pg_partitioned_table p
                        JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = (p.partattrs::int2[])[0]
                        JOIN pg_type t ON t.oid = a.atttypid
                       WHERE p.partrelid = root
                      UNION ALL SELECT t.oid, t.typbasetype FROM reduced r JOIN pg_type t ON t.oid = r.base)
                  SELECT format_type(r.type, NULL) FROM reduced r WHERE r.base = 0);
BEGIN
    FOR relation, bound IN
        SELECT c.oid, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = root AND c.relispartition AND NOT i.inhdetachpending
    LOOP
        -- Dropped since this statement began.
        CONTINUE WHEN bound IS NULL;
        is_default := bound = 'DEFAULT';
        parts := regexp_match(bound, '^FOR VALUES FROM \((.*)\) TO \((.*)\)$');
        IF parts IS NULL OR 'MINVALUE' = parts[1] THEN
            lo := -9223372036854775808;
        ELSE
            EXECUTE format('SELECT modak.tier_value(%s::%s)', parts[1], type) INTO lo;
        END IF;
        IF parts IS NULL OR 'MAXVALUE' = parts[2] THEN
            hi := 9223372036854775807;
        ELSE
            EXECUTE format('SELECT modak.tier_value(%s::%s)', parts[2], type) INTO hi;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
