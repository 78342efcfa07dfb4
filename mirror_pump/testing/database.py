"""A database for tests and the demo: its name, its DSN, and short ways to run SQL in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias

import psycopg

from mirror_pump.database.catalog_cursor import cursor_for
from mirror_pump.database.mirror_dsn import with_mirror
from mirror_pump.testing.postgres import EmbeddedPostgres, has_ended

_Connections: TypeAlias = dict[str, psycopg.Connection[Any]]


class _Reused(threading.local):
    """This thread's connections that are reused, by DSN; None outside keeping_connections()."""

    connections: _Connections | None = None


_reused = _Reused()


@contextmanager
def keeping_connections() -> Iterator[None]:
    """Within the block, `execute`, `rows` and `session` of every Database reuse their connections in this thread: a new
    one costs more than most statements."""
    if _reused.connections is not None:
        yield
        return
    _reused.connections = {}
    try:
        yield
    finally:
        for connection in _reused.connections.values():
            connection.close()
        _reused.connections = None


@dataclass(frozen=True)
class Database:
    """A database of an embedded server."""

    server: EmbeddedPostgres
    name: str
    mirror: str | None = None
    """The mirror of the database whose catalog marked statements are about."""

    @property
    def dsn(self) -> str:
        """A libpq URI, including the superuser's password."""
        dsn = self.server.dsn(self.name)
        return dsn if self.mirror is None else with_mirror(dsn, self.mirror)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A new connection, which the caller closes."""
        return psycopg.connect(self.dsn, autocommit=autocommit, cursor_factory=cursor_for(self.mirror))

    @contextmanager
    def session(self, *, autocommit: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """A connection for the block, as good as new: settings and locks of earlier blocks are gone. Only what ALTER
        DATABASE or ALTER ROLE has set since it was opened may be missing: see `reconnect`. Commits at the end."""
        connections = _reused.connections
        if connections is None:
            with self.connect(autocommit=autocommit) as connection:
                yield connection
            return
        # It is not kept during the block: a session within the block is another one.
        connection = connections.pop(self.dsn) if self.dsn in connections else self.connect()
        if has_ended(connection):
            connection.close()
            connection = self.connect()
        # The driver would not notice that DISCARD ALL forgets what it has prepared.
        connection.prepare_threshold = None
        connection.autocommit = autocommit
        clean = False
        try:
            yield connection
            if not connection.closed:
                connection.commit()
                connection.autocommit = True
                connection.execute("DISCARD ALL")
                clean = True
        finally:
            if clean and self.dsn not in connections:
                connections[self.dsn] = connection
            else:
                connection.close()

    def reconnect(self) -> None:
        """The next `execute`, `rows` or `session` begins with the settings that the database has now."""
        if _reused.connections is not None and self.dsn in _reused.connections:
            _reused.connections.pop(self.dsn).close()

    def execute(self, *statements: LiteralString) -> None:
        """Runs each statement in its own transaction."""
        with self.session() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: LiteralString, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a query returns."""
        with self.session() as connection:
            return connection.execute(query, parameters or None).fetchall()

    def lsn(self) -> int:
        """The WAL insert position, in bytes from 0/0."""
        return int(self.rows("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])
