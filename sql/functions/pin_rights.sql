-- What a reader's role may do with pins: its own rows, for a limited time, of tables that it may read. Not by row-level security,
-- which would hide pins from the pump, or fail its statements. In a separate file, because replacing a trigger waits for the
-- table's writers.

-- How long a pin may last. Roles that other programs' instructions grant less than ours need no right on the setting.
CREATE OR REPLACE FUNCTION modak.longest_pin() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT make_interval(secs => m.max_pin_seconds) FROM modak.schema_meta m
$$;

-- What holds for both kinds of pins: a role changes those alone that it put in place itself, and for a limited time. An INSERT has
-- no old values, and a DELETE no new ones. An expired pin protects nothing.
CREATE OR REPLACE FUNCTION modak.require_pin_rights(
    operation text, pin text, old_owner text, reader text, old_end timestamptz, new_owner text, new_end timestamptz
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT interval := modak.longest_pin();
BEGIN
    IF operation = 'DELETE' AND old_end <= now() THEN
        RETURN;
    ELSIF operation <> 'INSERT' AND old_owner IS NOT NULL AND NOT EXISTS (
           SELECT FROM pg_roles r WHERE r.rolname = old_owner AND pg_has_role(r.oid, 'MEMBER')) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s belongs to the role %s', pin, old_owner),
            DETAIL = format('It was put in place by %s, and lasts until %s.', reader, old_end),
            HINT = 'Wait for its end, or have it deleted by that role, by that of the pump, or by the administrator.';
    ELSIF operation = 'UPDATE' AND new_owner IS DISTINCT FROM old_owner THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s may not be given away', pin),
            HINT = 'Make another pin as that role.';
    ELSIF new_end > clock_timestamp() + longest THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('a pin lasts %s at most', longest),
            HINT = 'Pin for a shorter time, and renew the pin by another expires_at while you read. The limit is'
                ' modak.schema_meta.max_pin_seconds; the administrator can change it.';
    END IF;
END $$;

-- The role that maintains the mirror is the one that moves cut-lines: the pump's, and the administrator's.
CREATE OR REPLACE FUNCTION modak.check_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    END IF;
    IF NOT has_table_privilege('modak.cutline', 'UPDATE') THEN
        PERFORM modak.require_pin_rights(TG_OP, format('pin %s', OLD.pin_id), OLD.made_by, OLD.reader, OLD.expires_at,
                                         NEW.made_by, NEW.expires_at);
        -- The highest cut-line: it holds the lake alone, which rights on tables do not concern. NULL: the table was dropped.
        IF TG_OP <> 'DELETE' AND NEW.pinned_tier_key_hi < 9223372036854775807
           AND has_any_column_privilege(NEW.table_id::oid, 'SELECT') IS FALSE THEN
            RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
                MESSAGE = format('the role %s may not read %s, so it cannot hold up its cut-line', current_user,
                                 NEW.table_id::oid::regclass),
                HINT = 'GRANT SELECT on the table, or pin the lake alone: with the cut-line 9223372036854775807, or by modak.pin.';
        END IF;
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;
CREATE OR REPLACE TRIGGER check_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.read_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_pin();

-- The same of change feeds. The roles of the pump and of the administrator are those that move where feeds have expired.
CREATE OR REPLACE FUNCTION modak.check_feed_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    END IF;
    IF NOT has_table_privilege('modak.change_feeds', 'UPDATE') THEN
        PERFORM modak.require_pin_rights(TG_OP, format('pin %s of a change feed', OLD.pin_id), OLD.made_by, OLD.reader,
                                         OLD.expires_at, NEW.made_by, NEW.expires_at);
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;
CREATE OR REPLACE TRIGGER check_feed_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.feed_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_feed_pin();
