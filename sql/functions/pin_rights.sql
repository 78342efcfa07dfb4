-- What a reader's role may do with pins: its own rows, for a limited time, of tables that it may read. Not by row-level security,
-- which would hide pins from the pump, or fail its statements. In a separate file, because replacing a trigger waits for the
-- table's writers.
--
-- The rows are in tables on which readers have SELECT and INSERT: they can lock them in no mode that the pump or `status` would
-- wait for. UPDATE and DELETE are for the views of the names that readers know. A view with security_invoker: LOCK TABLE takes
-- the rights of who runs it on the table behind the view, and fails for lack of them. The tables' triggers check changes as well:
-- rights on them may be granted, even on a column alone.

CREATE OR REPLACE VIEW modak.read_pins WITH (security_invoker = true) AS
SELECT pin_id, table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, started_at, expires_at, reader, in_one_snapshot, made_by,
       ends_with
  FROM modak.read_pin_rows;
COMMENT ON VIEW modak.read_pins IS 'Reads in progress; nothing that the oldest pin can see may be reclaimed';

CREATE OR REPLACE VIEW modak.feed_pins WITH (security_invoker = true) AS
SELECT pin_id, feed_id, snapshot_id, started_at, expires_at, reader, made_by FROM modak.feed_pin_rows;
COMMENT ON VIEW modak.feed_pins IS 'Reads of change feeds in progress; their snapshots stay';

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

-- The number of a new pin, for roles without rights on its sequence. A reader could give its pin a number that is to come, by
-- OVERRIDING SYSTEM VALUE, and whoever pins with that number next, such as the pump, would wait for the reader's transaction.
CREATE OR REPLACE FUNCTION modak.next_pin_id(of_feed boolean) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN of_feed THEN nextval('modak.feed_pins_pin_id_seq') ELSE nextval('modak.read_pins_pin_id_seq') END
$$;

-- The role that maintains the mirror is the one that moves cut-lines: the pump's, and the administrator's.
CREATE OR REPLACE FUNCTION modak.check_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    END IF;
    IF NOT has_table_privilege('modak.cutline', 'UPDATE') THEN
        IF TG_OP = 'INSERT' THEN
            NEW.pin_id := modak.next_pin_id(of_feed => false);
        END IF;
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
CREATE OR REPLACE TRIGGER check_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.read_pin_rows FOR EACH ROW
    EXECUTE FUNCTION modak.check_pin();
CREATE OR REPLACE TRIGGER check_pin INSTEAD OF UPDATE OR DELETE ON modak.read_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_pin();

-- The same of change feeds. The roles of the pump and of the administrator are those that move where feeds have expired.
CREATE OR REPLACE FUNCTION modak.check_feed_pin() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.made_by := current_user;
    END IF;
    IF NOT has_table_privilege('modak.change_feeds', 'UPDATE') THEN
        IF TG_OP = 'INSERT' THEN
            NEW.pin_id := modak.next_pin_id(of_feed => true);
        END IF;
        PERFORM modak.require_pin_rights(TG_OP, format('pin %s of a change feed', OLD.pin_id), OLD.made_by, OLD.reader,
                                         OLD.expires_at, NEW.made_by, NEW.expires_at);
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;
CREATE OR REPLACE TRIGGER check_feed_pin BEFORE INSERT OR UPDATE OR DELETE ON modak.feed_pin_rows FOR EACH ROW
    EXECUTE FUNCTION modak.check_feed_pin();
CREATE OR REPLACE TRIGGER check_feed_pin INSTEAD OF UPDATE OR DELETE ON modak.feed_pins FOR EACH ROW
    EXECUTE FUNCTION modak.check_feed_pin();

-- Write what readers changed through a view, once the trigger before, whose name comes first, has let it pass as the reader's
-- role. The table's trigger lets it pass as the owner's. A row that was deleted meanwhile counts as none, and so does one that was
-- to be deleted as expired, and is renewed.
CREATE OR REPLACE FUNCTION modak.write_pin() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM modak.read_pin_rows r
         WHERE r.pin_id = OLD.pin_id AND (OLD.expires_at > now() OR r.expires_at <= now());
    ELSE
        UPDATE modak.read_pin_rows
           SET table_id = NEW.table_id, pinned_lake_snapshot_id = NEW.pinned_lake_snapshot_id,
               pinned_tier_key_hi = NEW.pinned_tier_key_hi, started_at = NEW.started_at, expires_at = NEW.expires_at,
               reader = NEW.reader, in_one_snapshot = NEW.in_one_snapshot, made_by = NEW.made_by, ends_with = NEW.ends_with
         WHERE pin_id = OLD.pin_id;
    END IF;
    RETURN CASE WHEN FOUND THEN coalesce(NEW, OLD) END;
END $$;
CREATE OR REPLACE TRIGGER write_pin INSTEAD OF UPDATE OR DELETE ON modak.read_pins FOR EACH ROW
    EXECUTE FUNCTION modak.write_pin();

CREATE OR REPLACE FUNCTION modak.write_feed_pin() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM modak.feed_pin_rows r
         WHERE r.pin_id = OLD.pin_id AND (OLD.expires_at > now() OR r.expires_at <= now());
    ELSE
        UPDATE modak.feed_pin_rows
           SET feed_id = NEW.feed_id, snapshot_id = NEW.snapshot_id, started_at = NEW.started_at, expires_at = NEW.expires_at,
               reader = NEW.reader, made_by = NEW.made_by
         WHERE pin_id = OLD.pin_id;
    END IF;
    RETURN CASE WHEN FOUND THEN coalesce(NEW, OLD) END;
END $$;
CREATE OR REPLACE TRIGGER write_feed_pin INSTEAD OF UPDATE OR DELETE ON modak.feed_pins FOR EACH ROW
    EXECUTE FUNCTION modak.write_feed_pin();

-- A trigger of anyone's table could have these write what no other trigger has looked at.
REVOKE EXECUTE ON FUNCTION modak.write_pin(), modak.write_feed_pin() FROM PUBLIC;
