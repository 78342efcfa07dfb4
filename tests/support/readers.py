"""A role that has a reader's privileges and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from psycopg import sql

from mirror_pump.testing.database import Database


@dataclass(frozen=True)
class ReaderRole:
    """A role of the test's server, which may log in."""

    name: str
    password: str
    dsn: str


@contextmanager
def role_of(database: Database) -> Iterator[ReaderRole]:
    """A new role without any privileges, which is dropped after the block. Its name needs quotes."""
    name, password = f"Analyst-{os.urandom(4).hex()}", os.urandom(8).hex()
    quoted = sql.Identifier(name)
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(quoted, sql.Literal(password)))
        parts = urlsplit(database.dsn)
        netloc = f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"
        try:
            yield ReaderRole(name, password, urlunsplit(parts._replace(netloc=netloc)))
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(quoted))
