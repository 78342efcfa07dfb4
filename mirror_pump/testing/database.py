"""What tests and the demo get when they ask for a database: its name and DSN, and a short way to run SQL in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from mirror_pump.testing.postgres import EmbeddedPostgres


@dataclass(frozen=True)
class Database:
    """A database of an embedded server."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        """A libpq URI with the superuser's password in it."""
        return self.server.dsn(self.name)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A plain connection that the caller closes."""
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def execute(self, *statements: LiteralString) -> None:
        """Runs each statement in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: LiteralString, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Everything that a query returns."""
        with self.connect() as connection:
            return connection.execute(query, parameters or None).fetchall()

    def lsn(self) -> int:
        """The WAL insert position, in bytes from 0/0."""
        return int(self.rows("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])
