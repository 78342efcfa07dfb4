"""The mirror's catalog as a server of it reads it: all tables, the frontier, and moments that are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from mirror_pump.database.errors import is_connection_loss
from mirror_pump.model import Lsn, TableName
from mirror_pump.source.catalog.kept_moments import KeptMoment, read_moments
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect, source_errors
from sql import queries

_SQL = queries("rest_catalog")


class ServedCatalog:
    """Reads the catalog of one mirror, by one connection that is made anew when it is lost. Threads may share it: one
    at a time uses the connection."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self.slot = slot
        self._lock = threading.Lock()
        self._open: PgConnection | None = None

    def close(self) -> None:
        """Close the connection. Another call opens one again."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def tables(self) -> list[PublishedState]:
        """All tables. Raises SourceError."""
        with self.connection("reading the mirrored tables") as connection:
            return self._tables(connection)

    def table(self, name: TableName) -> PublishedState | None:
        """The table of that name; None if none is mirrored under it. Raises SourceError."""
        with self.connection("reading a mirrored table") as connection:
            return next(iter(self._tables(connection, name)), None)

    def frontier(self) -> Lsn:
        """The mirror's frontier. Raises SourceError."""
        with self.connection("reading the frontier") as connection:
            row = connection.execute(_SQL["frontier"], {"slot": self.slot}).fetchone()
        return Lsn(0) if row is None else Lsn(row[0])

    def kept_moment(self, name: str) -> KeptMoment | None:
        """The moment that is kept under this name; None if there is none. Raises SourceError."""
        with self.connection("reading a moment") as connection:
            return next(iter(read_moments(connection, self.slot, name)), None)

    @contextmanager
    def connection(self, doing: str) -> Iterator[PgConnection]:
        """The connection, for the block alone. It is forgotten when it is lost, so that the next call makes another."""
        with self._lock, source_errors(doing):
            connection = self._open
            if connection is None or connection.closed:
                connection = self._open = connect(
                    self._dsn,
                    autocommit=True,
                    application_name="mirror-pump-rest-catalog",
                    lock_timeout=CATALOG_LOCK_TIMEOUT,
                )
            try:
                yield connection
            except psycopg.Error as error:
                if is_connection_loss(error):
                    self._drop()
                raise

    def _tables(self, connection: PgConnection, name: TableName | None = None) -> list[PublishedState]:
        states = published_states(connection, slot=self.slot, name=name)
        return [state for state in states if state.metadata_location is not None]
