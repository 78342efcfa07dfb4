"""A database for tests and the demo: its name, its DSN, and short ways to run SQL in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias

import psycopg

from mirror_pump.testing.postgres import EmbeddedPostgres

_Connections: TypeAlias = dict[str, psycopg.Connection[Any]]


class _Kept(threading.local):
    """Connections that `rows` reuses, by DSN; None outside keeping_connections()."""

    connections: _Connections | None = None


_kept = _Kept()


@contextmanager
def keeping_connections() -> Iterator[None]:
    """Within the block, Database.rows reuses its connections in this thread: a new one costs more than most queries."""
    if _kept.connections is not None:
        yield
        return
    _kept.connections = {}
    try:
        yield
    finally:
        for connection in _kept.connections.values():
            connection.close()
        _kept.connections = None


@dataclass(frozen=True)
class Database:
    """A database of an embedded server."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        """A libpq URI, including the superuser's password."""
        return self.server.dsn(self.name)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A new connection, which the caller closes."""
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def execute(self, *statements: LiteralString) -> None:
        """Runs each statement in its own transaction."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: LiteralString, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a query returns."""
        kept = _kept.connections
        if kept is None:
            with self.connect() as connection:
                return connection.execute(query, parameters or None).fetchall()
        with suppress(KeyError, psycopg.OperationalError):
            return kept[self.dsn].execute(query, parameters or None).fetchall()
        # This is the first query, or the connection was ended meanwhile by the test or together with its server.
        if self.dsn in kept:
            kept.pop(self.dsn).close()
        connection = kept[self.dsn] = self.connect()
        return connection.execute(query, parameters or None).fetchall()

    def lsn(self) -> int:
        """The WAL insert position, in bytes from 0/0."""
        return int(self.rows("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])
