-- Corrections: rows of modak.delta, which readers merge with the lake below T.

CREATE OR REPLACE FUNCTION modak.put_delta(id bigint, key text, what smallint, tier bigint, image jsonb) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
-- The version is drawn under the row's lock, so that versions order the writes of a key.
INSERT INTO modak.delta AS d (table_id, pk, op, tier_key, version, payload)
VALUES (id, key, what, tier, nextval('modak.delta_version'), image)
ON CONFLICT (table_id, pk) DO UPDATE
   SET op = excluded.op, tier_key = excluded.tier_key, old_tier_key = NULL, version = nextval('modak.delta_version'),
       payload = excluded.payload, updated_at = now(), folded_sequence = NULL
$$;

REVOKE EXECUTE ON FUNCTION modak.put_delta(bigint, text, smallint, bigint, jsonb) FROM PUBLIC;
