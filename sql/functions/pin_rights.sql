-- What a reader's role may do with pins: its own rows, for a limited time, of tables that it may read. Not by row-level security,
-- which would hide pins from the pump, or fail its statements. In a separate file, because replacing a trigger waits for the
-- table's writers.

-- How long a pin may last. Roles that other programs' instructions grant less than ours need no right on the setting.
CREATE OR REPLACE FUNCTION modak.longest_pin() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT make_interval(secs => m.max_pin_seconds) FROM modak.schema_meta m
$$;

-- The role that maintains the mirror is the one that moves cut-lines: the pump's, and the administrator's.
CREATE OR REPLACE FUNCTION modak.check_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT interval := modak.longest_pin();
BEGIN
    IF has_table_privilege('modak.cutline', 'UPDATE') THEN
        IF TG_OP = 'INSERT' THEN
            NEW.made_by := current_user;
        END IF;
        RETURN coalesce(NEW, OLD);
    END IF;
    IF TG_OP <> 'INSERT' AND OLD.made_by IS NOT NULL AND NOT EXISTS (
           SELECT FROM pg_roles r WHERE r.rolname = OLD.made_by AND pg_has_role(r.oid, 'MEMBER')) THEN
        -- An expired pin protects nothing.
        IF TG_OP = 'DELETE' AND OLD.expires_at <= now() THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('pin %s belongs to the role %s', OLD.pin_id, OLD.made_by),
            DETAIL = format('It was put in place by %s, and lasts until %s.', OLD.reader, OLD.expires_at),
            HINT = 'Wait for its end, or have it deleted by that role, by that of the pump, or by the administrator.';
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    ELSIF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    ELSIF NEW.made_by IS DISTINCT FROM OLD.made_by THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('pin %s may not be given away', OLD.pin_id),
            HINT = 'Make another pin as that role.';
    END IF;
    -- The highest cut-line: it holds the lake alone, which rights on tables do not concern. NULL: the table was dropped.
    IF NEW.pinned_tier_key_hi < 9223372036854775807
       AND has_any_column_privilege(NEW.table_id::oid, 'SELECT') IS FALSE THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('the role %s may not read %s, so it cannot hold up its cut-line', current_user,
                             NEW.table_id::oid::regclass),
            HINT = 'GRANT SELECT on the table, or pin the lake alone: with the cut-line 9223372036854775807, or by modak.pin.';
    END IF;
    IF NEW.expires_at > clock_timestamp() + longest THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('a pin lasts %s at most', longest),
            HINT = 'Pin for a shorter time, and renew the pin by another expires_at while you read. The limit is'
                ' modak.schema_meta.max_pin_seconds; the administrator can change it.';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER check_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.read_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_pin();

-- The same of change feeds. The roles of the pump and of the administrator are those that move where feeds have expired.
CREATE OR REPLACE FUNCTION modak.check_feed_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT interval := modak.longest_pin();
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    END IF;
    IF has_table_privilege('modak.change_feeds', 'UPDATE') OR (TG_OP = 'DELETE' AND OLD.expires_at <= now()) THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    IF TG_OP <> 'INSERT' AND NOT EXISTS (
           SELECT FROM pg_roles r WHERE r.rolname = OLD.made_by AND pg_has_role(r.oid, 'MEMBER')) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('pin %s of a change feed belongs to the role %s', OLD.pin_id, OLD.made_by),
            DETAIL = format('It was put in place by %s, and lasts until %s.', OLD.reader, OLD.expires_at),
            HINT = 'Wait for its end, or have it deleted by that role, by that of the pump, or by the administrator.';
    ELSIF TG_OP = 'DELETE' THEN
        RETURN OLD;
    ELSIF TG_OP = 'UPDATE' AND NEW.made_by IS DISTINCT FROM OLD.made_by THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = format('pin %s of a change feed may not be given away', OLD.pin_id),
            HINT = 'Make another pin as that role.';
    ELSIF NEW.expires_at > clock_timestamp() + longest THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation',
            MESSAGE = format('a pin lasts %s at most', longest),
            HINT = 'Pin for a shorter time, and renew the pin by another expires_at while you read. The limit is'
                ' modak.schema_meta.max_pin_seconds; the administrator can change it.';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER check_feed_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.feed_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_feed_pin();
