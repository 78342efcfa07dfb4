-- Statements about users' tables, run with the rights of the tables' owners.
--
-- What the owner of a table puts into it runs with the rights of the role that reads or writes the table: triggers, rules, checks
-- of domains, casts, functions of indexes, which the planner may call. So a function that runs as the owner of schema modak
-- (SECURITY DEFINER) neither plans a statement about a user's table nor handles values of users' types: as_owner() does that, by a
-- function that belongs to the table's owner. There is one for each owner, named owner_ and the owner's OID.

-- Makes or replaces a function of schema modak that belongs to a relation's owner and runs with the owner's rights. `named`: its name
-- with the types of its arguments; `declared`: its name and parameters; `settings`: its SET clauses; `head`: options of PL/pgSQL. Its
-- owner may alter and drop it, but not replace it, which takes CREATE on schema modak. The body is for one owner; it refuses by itself
-- to run as any other role, as one would that is made SECURITY INVOKER. Only the owner of schema modak may call the function.
CREATE OR REPLACE FUNCTION modak.give_function(owner oid, named text, declared text, settings text, head text, body text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT name := pg_get_userbyid(owner);
    -- Names here are looked up along a search_path that the function's owner may have set.
    whole CONSTANT text := format($body$
%sBEGIN
    IF pg_catalog.pg_get_userbyid(%L::pg_catalog.oid) OPERATOR(pg_catalog.<>) current_user THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'it runs as its owner only';
    END IF;
    %s
END $body$, head, owner, body);
    lent boolean;
BEGIN
    -- A transaction may have a snapshot from before the function was created.
    IF to_regprocedure(named) IS NOT NULL AND NOT EXISTS (
           SELECT FROM pg_proc p WHERE p.oid = to_regprocedure(named)
              AND NOT (p.prosecdef AND p.proowner = owner AND p.prosrc = whole)) THEN
        RETURN;
    END IF;
    IF NOT has_schema_privilege(owner, 'modak', 'USAGE') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA modak TO %I', role);
    END IF;
    -- A function's new owner needs CREATE on its schema, until this transaction ends.
    lent := NOT has_schema_privilege(owner, 'modak', 'CREATE');
    IF lent THEN
        EXECUTE format('GRANT CREATE ON SCHEMA modak TO %I', role);
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION %s LANGUAGE plpgsql SECURITY DEFINER %s AS %L', declared, settings, whole);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', named);
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', named, role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', named, current_user);
    IF lent THEN
        EXECUTE format('REVOKE CREATE ON SCHEMA modak FROM %I', role);
    END IF;
END $$;

-- The name of the function that runs statements as the owner of a relation. Creates it if it is missing or was altered.
CREATE OR REPLACE FUNCTION modak.owner_function(relation oid) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = relation);
    wanted CONSTANT name := 'owner_' || coalesce(owner, 0);
BEGIN
    IF owner IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_table', MESSAGE = format('relation %s does not exist', relation);
    END IF;
    PERFORM modak.give_function(
        owner, format('modak.%I(text, anyelement)', wanted),
        format('modak.%I(statement text, given anyelement, OUT tier bigint, OUT pk text, OUT op smallint, OUT image jsonb)', wanted),
        'SET search_path = pg_catalog, pg_temp', '', 'EXECUTE statement INTO tier, pk, op, image USING given;');
    RETURN wanted;
END $$;

-- Runs a statement with the rights of a relation's owner; `given` is its parameter $1. Returns its first row: at most a tier value,
-- a key, an op and a payload. What the statement calls may have changed search_path for good, so that is set again.
CREATE OR REPLACE FUNCTION modak.as_owner(relation oid, statement text, given anyelement, OUT tier bigint, OUT pk text, OUT op smallint,
                                          OUT image jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT * FROM modak.%I($1, $2)', modak.owner_function(relation)) INTO tier, pk, op, image
      USING statement, given;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
END $$;

-- Whether a relation has any rows.
CREATE OR REPLACE FUNCTION modak.holds_rows(relation oid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    rows bigint;
BEGIN
    SELECT o.tier INTO rows
      FROM modak.as_owner(relation, format('SELECT count(*) FROM (SELECT FROM ONLY %s LIMIT 1) r', relation::regclass), 0) o;
    RETURN rows > 0;
END $$;

-- The largest value of the tier key in a partition, in the column of that name; NULL if it has no row.
CREATE OR REPLACE FUNCTION modak.newest_tier(relation oid, tier_column name) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
DECLARE
    newest bigint;
BEGIN
    SELECT o.tier INTO newest
      FROM modak.as_owner(relation, format('SELECT modak.tier_value(max(r.%I)) FROM ONLY %s r', tier_column, relation::regclass), 0) o;
    RETURN newest;
END $$;

REVOKE EXECUTE ON FUNCTION modak.give_function(oid, text, text, text, text, text), modak.owner_function(oid),
    modak.as_owner(oid, text, anyelement), modak.holds_rows(oid), modak.newest_tier(oid, name) FROM PUBLIC;
