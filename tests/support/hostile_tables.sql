-- Tables of users, whose own code names things without their schema.
CREATE SCHEMA app;
CREATE FUNCTION app.folded(v text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN concat_ws('-', lower(v), upper(v)); END $$;
CREATE FUNCTION app.stamp() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN format('%s', 1::bigint + 1::int); END $$;
CREATE FUNCTION app.checked(v text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN length(v) >= 0::bigint; END $$;
CREATE DOMAIN app.word AS text CHECK (app.checked(VALUE));
CREATE TYPE app.mood AS ENUM ('calm', 'wild');
CREATE TABLE app.notes (id bigint PRIMARY KEY, v text, w app.word DEFAULT 'w', m app.mood DEFAULT 'calm', s text DEFAULT app.stamp());
CREATE INDEX ON app.notes (app.folded(v));
-- Code of users in our sessions names things without their schema too, and makes temporary objects.
CREATE FUNCTION app.noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.v := concat_ws('-', lower(NEW.v), to_jsonb(NEW.id) ->> '{}');
    IF to_regnamespace('trap') IS NOT NULL AND to_regclass('pg_temp.pg_class') IS NULL THEN
        CREATE TEMP VIEW pg_class AS SELECT 0::oid AS oid, ''::name AS relname WHERE trap.called('temporary relation');
        CREATE TEMP VIEW pg_namespace AS SELECT 0::oid AS oid, ''::name AS nspname WHERE trap.called('temporary relation');
    END IF;
    RETURN NEW; END $$;
CREATE TRIGGER noted BEFORE INSERT OR UPDATE ON app.notes FOR EACH ROW EXECUTE FUNCTION app.noted();
INSERT INTO app.notes (id, v) SELECT g, 'v' || g FROM generate_series(1, 50) g;
CREATE TABLE app.events (at bigint, id bigint, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE app.p0 PARTITION OF app.events FOR VALUES FROM (0) TO (100);
CREATE TABLE app.p1 PARTITION OF app.events FOR VALUES FROM (100) TO (200);
INSERT INTO app.events SELECT g, g, 'first' FROM generate_series(0, 190, 10) g;
CREATE TABLE app.tiered (at bigint, id bigint, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE app.t0 PARTITION OF app.tiered FOR VALUES FROM (0) TO (100);
CREATE TABLE app.t1 PARTITION OF app.tiered FOR VALUES FROM (100) TO (200);
INSERT INTO app.tiered SELECT g, g, 'first' FROM generate_series(0, 190, 10) g;
