"""Sessions of commands that end in the middle of their transaction."""

from __future__ import annotations

ENDED = """
CREATE FUNCTION audit.end_session() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_setting('application_name') = 'mirror-pump-alter' THEN
    PERFORM pg_terminate_backend(pg_backend_pid());
    PERFORM pg_sleep(10);
  END IF;
  RETURN NULL; END $$
"""
"""A trigger function that ends the session of a command that changes a lake table's metadata, where it fires."""
