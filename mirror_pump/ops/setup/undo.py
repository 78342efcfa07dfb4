"""Removes what a failed first init has made outside of its transaction.

Each thing is noted before it is made, so that nothing is missed if the connection breaks while the server makes it. The
connection holds a lock that keeps other inits of the database out. So whatever did not exist before belongs to this
init.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import psycopg
from psycopg import pq, sql

from mirror_pump.errors import MirrorPumpError, SourceError
from mirror_pump.lake.storage import local_path
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_schema import installed_version
from mirror_pump.source.connect import PgConnection, connect, limited
from sql import queries

_SQL = queries("init")

INIT_LOCK = "hashtextextended('modak.init', 0)"
"""The key of one lock for all mirrors of a database: each looks at what the others have."""
_ENTRY_TIMEOUT = "1s"
"""How long an init waits for another one: one that has just failed keeps its lock until the server has ended its
session."""
_LOCK_TIMEOUT = "10s"
"""How long the undo waits for the server to notice that the init's own connection is gone."""


class Undo:
    """Removes what was noted unless `keep` was called. A context manager, to be used inside that of the connection."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._connection: PgConnection | None = None
        self._slot: str | None = None
        self._publication: str | None = None
        self._directories: list[Path] = []
        """Directories that did not exist before, the deepest first."""
        self._is_complete = False

    def enter(self, connection: PgConnection) -> None:
        """Keep other inits of this database out while the connection lives. Raises SourceError if one is running."""
        try:
            with limited(connection, _ENTRY_TIMEOUT):
                connection.execute(f"SELECT pg_advisory_lock({INIT_LOCK})".encode())
        except psycopg.errors.LockNotAvailable:
            raise SourceError(
                "another `mirror-pump init` is at work in this database",
                "wait for it; if it was killed, the server notices within a minute",
            ) from None
        self._connection = connection

    def making_slot(self, name: str) -> None:
        """Note that this slot does not exist and is about to be created."""
        self._slot = name

    def making_publication(self, name: str) -> None:
        """Note that this publication does not exist and is about to be created."""
        self._publication = name

    def making_directory(self, warehouse: str) -> None:
        """Note the missing directories of the warehouse. The first file written there creates them."""
        path = local_path(warehouse)
        while path is not None and not path.exists():
            self._directories.append(path)
            path = path.parent

    def keep(self) -> None:
        """Note that the init is complete, so that nothing is removed."""
        self._is_complete = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_complete:
            return
        for directory in self._directories:
            try:
                directory.rmdir()
            except OSError:
                break
        if self._slot is None and self._publication is None:
            return
        try:
            self._take_back()
        except (psycopg.Error, MirrorPumpError) as failure:
            self._say(f"warning: {self._described} may be left behind ({failure}); the next init goes on with them")

    @property
    def _described(self) -> str:
        made = {"slot": self._slot, "publication": self._publication}
        return " and ".join(f"{kind} {name}" for kind, name in made.items() if name is not None)

    def _take_back(self) -> None:
        connection = self._connection
        if connection is not None and connection.info.transaction_status is pq.TransactionStatus.IDLE:
            self._drop(connection)
            return
        # The connection broke, which releases its lock.
        with connect(self._settings.require_dsn(), autocommit=True, application_name="mirror-pump-init") as connection:
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'".encode())
            connection.execute(f"SELECT pg_advisory_lock({INIT_LOCK})".encode())
            if installed_version(connection) is None:
                self._drop(connection)

    def _drop(self, connection: PgConnection) -> None:
        if self._slot is not None:
            connection.execute(_SQL["drop_slot"], {"slot": self._slot})
        if self._publication is not None:
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self._publication)))
        self._say(f"taken back: {self._described}")
