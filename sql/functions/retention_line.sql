-- The retention line (cutline.retention_line) of a table with lake retention: rows below it have expired. It only grows, is
-- never above the cut-line, and moves in the publish that removes these rows from the lake.

-- A tier value as the tier key's type prints it, in UTC, for messages.
CREATE OR REPLACE FUNCTION modak.tier_text(id bigint, tier bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET timezone = 'UTC' AS $$
DECLARE
    type text := (SELECT t.tier_key_type FROM modak.tables t WHERE t.table_id = id);
BEGIN
    RETURN CASE WHEN type = 'date' THEN (date '1970-01-01' + tier::int)::text
                WHEN type = 'timestamp' THEN (timestamp '1970-01-01' + tier * interval '1 microsecond')::text
                WHEN type = 'timestamptz' THEN (timestamptz '1970-01-01+00' + tier * interval '1 microsecond')::text
                ELSE tier::text END;
EXCEPTION WHEN data_exception THEN
    -- Years that the type does not have.
    RETURN tier::text;
END $$;

-- Refuses a change of a row below the retention line. It reads the line as of the statement's snapshot: a transaction that
-- began before the line moved may write a correction below it later. Readers leave such a correction out, no fold brings it
-- into the lake, and it is purged: as if the transaction had come before the expiry.
CREATE OR REPLACE FUNCTION modak.refuse_expired(id bigint, tier bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    line bigint := (SELECT c.retention_line FROM modak.cutline c WHERE c.table_id = id);
BEGIN
    IF tier < line THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('the row of %s has expired: rows below %s do not stay in the lake', id::oid::regclass,
                             modak.tier_text(id, line)),
            DETAIL = format('The row''s key is %s.', modak.tier_text(id, tier)),
            HINT = 'mirror-pump policy get TABLE shows lake_retention. The line never moves back.';
    END IF;
END $$;

-- Where the retention line should be: the lag behind the cut-line, or lower, at the lowest partition that the cut-line has
-- passed and that the heap still holds: its rows are compared with the lake before it is dropped. A partition that was attached
-- below the cut-line does not count, since the lake never had its rows. NULL if the line does not have to move.
CREATE OR REPLACE FUNCTION modak.due_retention_line(id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT due.line
  FROM modak.tables t JOIN modak.cutline c USING (table_id)
 CROSS JOIN LATERAL (
       SELECT least(greatest(c.tier_key_hi::numeric - t.lake_retention_lag, -9223372036854775807)::bigint,
                    (SELECT min(p.tier_key_lo) FROM modak.partitions p
                      WHERE p.table_id = id AND p.state IN ('tiering', 'tiered') AND p.sealed_lsn IS NOT NULL)) AS line) due
 WHERE t.table_id = id AND t.lake_retention_lag IS NOT NULL AND modak.moved_cut(id) IS NOT NULL
   AND due.line > coalesce(c.retention_line, -9223372036854775808)
$$;

-- Moves the retention line to `line`, within the publish that removes the rows below it from the lake. Returns NULL, or why
-- that is not possible. No reader that may look at the delta more than once, or without a filter, has a pin until the end of the
-- transaction: such a reader would find corrections of its pinned snapshot missing. Readers in one database snapshot find line,
-- published snapshot and corrections that fit together.
CREATE OR REPLACE FUNCTION modak.expire(id bigint, line bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text := modak.lock_pins(id, 9223372036854775807);
BEGIN
    IF reason IS NOT NULL THEN
        RETURN reason;
    END IF;
    UPDATE modak.cutline c SET retention_line = line, updated_at = now()
     WHERE c.table_id = id AND line <= modak.due_retention_line(id) AND line > coalesce(c.retention_line, -9223372036854775808);
    IF NOT FOUND THEN
        RETURN format('the retention line need not move to %s any more', modak.tier_text(id, line));
    END IF;
    RETURN NULL;
END $$;

-- Removes corrections below the retention line, folded or not, and returns how many. Skips those that other transactions have
-- locked; they are removed later. The caller keeps pins out.
CREATE OR REPLACE FUNCTION modak.purge_expired(id bigint) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
WITH gone AS (
    DELETE FROM modak.delta
     WHERE ctid = ANY (ARRAY(SELECT d.ctid FROM modak.delta d JOIN modak.cutline c USING (table_id)
                              WHERE d.table_id = id AND d.tier_key < c.retention_line
                                FOR UPDATE OF d SKIP LOCKED))
    RETURNING 1)
SELECT count(*) FROM gone
$$;

REVOKE EXECUTE ON FUNCTION modak.expire(bigint, bigint), modak.purge_expired(bigint) FROM PUBLIC;
