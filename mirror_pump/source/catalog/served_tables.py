"""The mirror's tables as a catalog server shows them, and the leases that keep what its clients read.

A lease is a set of pins, one for each table of a moment, that carry the lease's name (read_pins.reader). It belongs to
no process: the server of the moment renews it, also after a restart.

Invariant: as long as a lease is not over, the snapshots that it names are in their tables' histories, and their files
stay. A pin is put in place before its snapshot is looked for, or in the transaction that reads the published snapshot,
under the lock that a publish takes notice of; and a pin that has expired is never renewed.

These pins promise that only the lake is read: neither a partition nor a correction waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from mirror_pump.database.errors import is_connection_loss
from mirror_pump.model import Lsn, SnapshotId, TableId, TableName
from mirror_pump.source.catalog.kept_moments import KeptMoment, read_moments
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("rest_catalog")


@dataclass(frozen=True)
class LeasedSnapshot:
    """A row of the query `leased`: an unexpired pin of a lease."""

    pin_id: int
    table_id: TableId
    snapshot_id: SnapshotId


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

    # Leases

    def published(self, seconds: float) -> tuple[list[PublishedState], Mapping[TableId, int]]:
        """All tables, and for those that are readable the ID of a pin on their published snapshot, which lasts
        `seconds` and has no name yet. Raises SourceError."""
        with self.connection("pinning the published snapshots") as connection, connection.transaction():
            connection.execute(_SQL["lock_pins"])
            tables = self._tables(connection)
            readable = {table.table_id: table.snapshot_id for table in tables if table.is_readable}
            return tables, self._pin(connection, readable, seconds)

    def pin(self, snapshots: Mapping[TableId, SnapshotId], seconds: float) -> Mapping[TableId, int]:
        """Pins a snapshot of each of these tables. The caller looks afterwards whether it is still there. Returns the
        IDs of the pins by table; none for a table that has left the mirror. Raises SourceError."""
        with self.connection("pinning snapshots") as connection, connection.transaction():
            return self._pin(connection, snapshots, seconds)

    @staticmethod
    def _pin(
        connection: PgConnection, snapshots: Mapping[TableId, SnapshotId], seconds: float
    ) -> Mapping[TableId, int]:
        parameters = {
            "table_ids": list(snapshots),
            "snapshot_ids": list(snapshots.values()),
            "seconds": seconds,
        }
        return dict(connection.execute(_SQL["pin"], parameters).fetchall())

    def name_lease(self, lease: str, pins: Collection[int]) -> None:
        """Makes pins a lease, which any process finds by its name. Raises SourceError."""
        with self.connection("naming a lease") as connection:
            connection.execute(_SQL["name_lease"], {"lease": f", {lease}", "pins": list(pins)})

    def leased(self, lease: str) -> list[LeasedSnapshot]:
        """The pins of a lease; none if it is over. Raises SourceError."""
        parameters = {"slot": self.slot, "lease": f", {lease}"}
        with self.connection("looking for a lease") as connection:
            return fetch_rows(connection, LeasedSnapshot, _SQL["leased"], parameters)

    def renew(self, pins: Collection[int], seconds: float) -> bool:
        """Lets pins last for `seconds` from now on. False if one of them has expired. Raises SourceError."""
        with self.connection("renewing a lease") as connection:
            return connection.execute(_SQL["renew"], {"pins": list(pins), "seconds": seconds}).rowcount == len(pins)

    def release(self, pins: Collection[int]) -> None:
        """Removes pins. Raises SourceError."""
        with self.connection("releasing pins") as connection:
            connection.execute(_SQL["release"], {"pins": list(pins)})
