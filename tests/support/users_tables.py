"""A connection of the program's on which a test plays the user as well, who creates tables in schema public."""

from __future__ import annotations

from mirror_pump.source.connect import PgConnection, connect


def connect_as_user(dsn: str) -> PgConnection:
    """A connection with the settings of the program, but the path of a user. The caller closes it."""
    connection = connect(dsn, autocommit=True)
    connection.execute("SET search_path = public")
    return connection
