-- The event triggers (mirror_pump/source/relations/change_notes.py), each by its name; their functions are in sql/functions/event_triggers.sql.
-- Only a superuser may create them.

-- name: mirror_pump_ddl
CREATE EVENT TRIGGER mirror_pump_ddl ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE SCHEMA', 'ALTER TYPE', 'ALTER SCHEMA')
    EXECUTE FUNCTION modak.mirror_ddl();

-- name: mirror_pump_drop
CREATE EVENT TRIGGER mirror_pump_drop ON sql_drop EXECUTE FUNCTION modak.mirror_drop();

-- name: mirror_pump_rewrite
CREATE EVENT TRIGGER mirror_pump_rewrite ON table_rewrite EXECUTE FUNCTION modak.mirror_rewrite();
