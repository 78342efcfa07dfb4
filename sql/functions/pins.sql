-- Pins: what a reader has pinned stays until the reader releases the pin, or the pin expires.

-- Pins tables, and returns for each its cut-line, published snapshot and frontier, the properties of its cut-line, the
-- metadata file that the catalog names, and its registration, all as of one moment. This is one statement, which locks
-- read_pin_rows before it reads the cut-line and the published snapshot: pinning() and LOCK TABLE modak.read_pin_rows rely on
-- that. So does an INSERT INTO modak.read_pins, which the server rewrites to one into read_pin_rows.
-- `snapshot_id` and `cut`, if given, are pinned instead of the published snapshot and the cut-line. With `in_one_snapshot` the
-- caller makes the promise that the comment on that column of read_pins describes.
-- A role that may not read a table pins the lake alone.
CREATE OR REPLACE FUNCTION modak.pin_tables(table_ids bigint[], duration interval, in_one_snapshot boolean DEFAULT true,
                                            snapshot_id bigint DEFAULT NULL, cut bigint DEFAULT NULL)
RETURNS TABLE (pin_id bigint, table_id bigint, tier_key_hi bigint, lake_snapshot_id bigint, replicated_lsn bigint,
               lake_props jsonb, metadata_location text, state text, start_lsn bigint)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
WITH present AS (
    SELECT c.table_id, c.tier_key_hi, c.lake_snapshot_id, c.replicated_lsn, c.lake_props, i.metadata_location, m.state,
           m.start_lsn
      FROM modak.cutline c
      LEFT JOIN modak.mirror_tables m ON m.table_id = c.table_id
      LEFT JOIN modak.lake_pointers i ON i.table_id = c.table_id
     WHERE c.table_id = ANY (pin_tables.table_ids)),
pinned AS (
    INSERT INTO modak.read_pin_rows AS p (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, in_one_snapshot)
    SELECT n.table_id, coalesce(pin_tables.snapshot_id, n.lake_snapshot_id), coalesce(pin_tables.cut,
               CASE WHEN has_any_column_privilege(n.table_id::oid, 'SELECT') IS NOT FALSE THEN n.tier_key_hi
                    ELSE 9223372036854775807 END),
           now() + pin_tables.duration, pin_tables.in_one_snapshot
      FROM present n
    RETURNING p.pin_id, p.table_id)
SELECT p.pin_id, n.table_id, n.tier_key_hi, n.lake_snapshot_id, n.replicated_lsn, n.lake_props, n.metadata_location, n.state,
       n.start_lsn
  FROM present n JOIN pinned p ON p.table_id = n.table_id
$$;

-- For readers: pins one table, and returns its cut-line, its published snapshot, and the location of the lake at that
-- snapshot.
CREATE OR REPLACE FUNCTION modak.pin(relation regclass, ttl interval DEFAULT '15 minutes', in_one_snapshot boolean DEFAULT false)
RETURNS TABLE (pin_id bigint, t bigint, s bigint, metadata_location text, snapshot_id text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT p.pin_id, p.tier_key_hi, p.lake_snapshot_id, p.lake_props ->> 'metadata_location', p.lake_props ->> 'snapshot_id'
  FROM modak.pin_tables(ARRAY[relation::oid::bigint], ttl, pin.in_one_snapshot) p
$$;

-- The values that rows have in columns which were added later, as the column's type prints them; NULL in columns that are
-- not returned. For readers of a published snapshot that lacks columns which the table has by now: those whose field IDs the
-- snapshot lacks (NULL: not assigned yet). As of the caller's snapshot.
CREATE OR REPLACE FUNCTION modak.initial_values(relation regclass) RETURNS TABLE (column_name text, field_id int, value text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET array_nulls = on AS $$
SELECT a.attname::text, c.field_id, coalesce(c.initial, stored.text)
  FROM modak.mirror_tables m
  JOIN pg_attribute a ON a.attrelid = m.table_id::oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN jsonb_to_recordset(m.columns) AS c(attnum int, field_id int, initial text) ON c.attnum = a.attnum
 -- Until the mirror has applied the column's addition, older partitions have its value in their catalog entries.
 LEFT JOIN LATERAL (
       SELECT (min(l.attmissingval::text)::text[])[1] AS text
         FROM modak.mirror_tree(m.table_id::oid) r
         JOIN pg_attribute l ON l.attrelid = r.relation AND l.attname = a.attname AND l.atthasmissing AND NOT l.attisdropped
        WHERE r.is_leaf AND c.attnum IS NULL
       HAVING count(DISTINCT l.attmissingval::text) = 1) stored ON true
 WHERE m.table_id = relation::oid::bigint AND coalesce(c.initial, stored.text) IS NOT NULL
$$;

CREATE OR REPLACE FUNCTION modak.release(pin bigint) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
WITH gone AS (DELETE FROM modak.read_pins WHERE pin_id = pin RETURNING 1) SELECT EXISTS (SELECT FROM gone)
$$;

-- A transaction that is not older than the given one (NULL: of any age) and may hold a pin that others cannot see yet; NULL
-- if there is none. A pinning transaction holds this lock from before it reads the cut-line and the published snapshot until
-- it ends.
CREATE OR REPLACE FUNCTION modak.pinning(younger interval DEFAULT NULL) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce('process ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'a prepared transaction')
  FROM pg_locks l
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
       AND x.locktype = 'transactionid'
  LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
 CROSS JOIN LATERAL coalesce(a.xact_start, p.prepared) AS began(at)
 WHERE l.locktype = 'relation' AND l.relation = 'modak.read_pin_rows'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND (began.at > clock_timestamp() - younger) IS NOT FALSE
 ORDER BY began.at DESC LIMIT 1
$$;

-- A pin, as reasons name it. present_reason() recognises it by its beginning.
CREATE OR REPLACE FUNCTION modak.pin_text(p modak.read_pin_rows) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format('pin %s of a reader (%s) lasts until %s', p.pin_id, p.reader, date_trunc('second', p.expires_at))
$$;

-- The reader whose pin of a cut-line below `cut` expires last; NULL if there is none. With `whole`, considers all readers,
-- otherwise only those that may read the delta more than once, or without a filter (not read_pins.in_one_snapshot).
CREATE OR REPLACE FUNCTION modak.pin_below(id bigint, cut bigint, whole boolean) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT modak.pin_text(p)
  FROM modak.read_pin_rows p
 WHERE p.table_id = id AND p.pinned_tier_key_hi < cut AND p.expires_at > now() AND (whole OR NOT p.in_one_snapshot)
 ORDER BY p.expires_at DESC LIMIT 1
$$;

-- A stored reason why retention waits, as it is now: NULL if it names a reader that is gone. The pump stores the reason when it
-- looks, which a copy or a proof may put off for minutes.
CREATE OR REPLACE FUNCTION modak.present_reason(reason text) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE
       WHEN reason ~ '^pin [0-9]+ of a reader' THEN
            (SELECT modak.pin_text(p) FROM modak.read_pin_rows p
              WHERE p.pin_id = substring(reason FROM '[0-9]+')::bigint AND p.expires_at > now())
       WHEN reason ~ ' is putting a pin in place$' THEN modak.pinning() || ' is putting a pin in place'
       WHEN reason ~ '^process [0-9]+ reads a snapshot' AND NOT EXISTS (
            SELECT FROM pg_stat_activity a WHERE a.pid = substring(reason FROM '[0-9]+')::int) THEN NULL
       ELSE reason END
$$;
