-- What a table's mode decides, in one place for all statements. The bodies are parsed when they are defined, so callers'
-- search_path has no say, and the planner puts them into the statements that call them.

-- How far below the newest tier key partitions leave the heap, in tier values; NULL: none does. `mode`, `heap_retention_lag` of
-- modak.tables, `retention` of modak.mirror_tables.
CREATE OR REPLACE FUNCTION modak.lag_of(mode text, heap_retention_lag bigint, retention jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE mode WHEN 'tiered' THEN (retention ->> 'lag')::bigint ELSE heap_retention_lag END;

-- Whether a table has a cut-line: rows below it are in the lake, and all others in the heap. A plain mirrored table has none.
CREATE OR REPLACE FUNCTION modak.has_cutline(mode text, heap_retention_lag bigint, cut bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN mode = 'tiered' OR heap_retention_lag IS NOT NULL OR cut > '-9223372036854775808'::bigint;

-- Whether the changes of a table come by the stream. A tiered table's do not: its partitions are copied when they leave the heap.
CREATE OR REPLACE FUNCTION modak.streams(id bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM modak.tables t WHERE t.table_id = id AND t.mode = 'mirrored')
$$;

-- Whether partitions stay in the heap, although the lake holds them. It does not change after the registration.
CREATE OR REPLACE FUNCTION modak.keeps_heap(id bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce((SELECT t.keep_heap FROM modak.tables t WHERE t.table_id = id), false)
$$;
