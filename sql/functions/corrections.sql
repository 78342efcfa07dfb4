-- Corrections: rows of modak.delta, which readers merge with the lake below the cut-line.

CREATE OR REPLACE FUNCTION modak.put_delta(id bigint, key text, what smallint, tier bigint, image jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
-- The version is taken under the row's lock, so that versions order the writes of a key.
INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
VALUES (id, key, what, tier, nextval('modak.delta_version'), image)
ON CONFLICT (table_id, pk) DO UPDATE
   SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
       payload = excluded.payload, updated_at = now(), folded_sequence = NULL
$$;

-- Writes corrections of many keys, as put_delta() does of one. `rows`: an array of [tier value, key, op, payload], each key once.
CREATE OR REPLACE FUNCTION modak.put_deltas(id bigint, rows jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
SELECT id, i.item ->> 1, (i.item ->> 2)::smallint, (i.item ->> 0)::bigint, nextval('modak.delta_version'), i.item -> 3
  FROM (SELECT e.item FROM jsonb_array_elements(rows) AS e(item) ORDER BY e.item ->> 1) i
ON CONFLICT (table_id, pk) DO UPDATE
   SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
       payload = excluded.payload, updated_at = now(), folded_sequence = NULL
$$;

-- Adds new columns to corrections that were captured before, with the values that all older rows have there. `columns`: an
-- array of {attnum, type, modifier, text}, where text is as the column's type prints it (null: NULL). A later correction
-- names all columns, so one that lacks a column is older. `waiting`: waits for corrections that other transactions have
-- locked, and does not skip them.
CREATE OR REPLACE FUNCTION modak.complete_corrections(id bigint, columns jsonb, waiting boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    given text;
    numbers int[];
    names text[];
    image jsonb;
BEGIN
    SELECT string_agg(format('%L::%s AS %I', c.text, format_type(a.atttypid, a.atttypmod), a.attname), ', '),
           array_agg(a.attnum), array_agg(a.attname::text)
      INTO given, numbers, names
      FROM jsonb_to_recordset(columns) AS c(attnum int, type bigint, modifier int, text text)
      JOIN pg_attribute a ON a.attrelid = id::oid AND a.attnum = c.attnum AND NOT a.attisdropped
           AND a.atttypid = c.type::oid AND a.atttypmod = c.modifier;
    IF given IS NULL THEN
        RETURN;
    END IF;
    SELECT o.image INTO image FROM modak.as_owner(
        id::oid, (SELECT 'SELECT NULL::bigint, NULL::text, NULL::smallint, ' || p.expression || ' FROM (SELECT ' || given || ') r'
                         || p.further FROM modak.row_payload(id::oid, numbers) p), 0) o;
    IF waiting THEN
        UPDATE modak.delta d SET payload = image || d.payload
         WHERE d.table_id = id AND d.op = 0 AND NOT d.payload ?& names;
        UPDATE modak.mirror_captured d SET payload = image || d.payload
         WHERE d.table_id = id AND d.op = 0 AND NOT d.payload ?& names;
    ELSE
        UPDATE modak.delta d SET payload = image || d.payload
         WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM modak.delta o
                                    WHERE o.table_id = id AND o.op = 0 AND NOT o.payload ?& names
                                      FOR UPDATE SKIP LOCKED));
        UPDATE modak.mirror_captured d SET payload = image || d.payload
         WHERE d.ctid = ANY (ARRAY(SELECT o.ctid FROM modak.mirror_captured o
                                    WHERE o.table_id = id AND o.op = 0 AND NOT o.payload ?& names
                                      FOR UPDATE SKIP LOCKED));
    END IF;
END $$;

REVOKE EXECUTE ON FUNCTION modak.put_delta(bigint, text, smallint, bigint, jsonb), modak.put_deltas(bigint, jsonb),
    modak.complete_corrections(bigint, jsonb, boolean) FROM PUBLIC;
