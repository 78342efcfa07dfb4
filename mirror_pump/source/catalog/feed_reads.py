"""Change feeds as readers see them, and pins on their snapshots.

Invariant: as long as a pin is not over, the snapshot that it names is in its feed's history, and the files of both
stay. A pin is put in place before its snapshot is looked for, and one that has expired is never renewed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirror_pump.model import Lsn, SnapshotId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("feed_reads")


@dataclass(frozen=True)
class ReadFeed:
    """A feed and its mirrored table, as of one moment of the catalog: a row of the query `feeds`."""

    feed_id: int
    """`table_id` of the mirrored table; 0 for the transactions."""
    mode: str
    namespace: str
    name: str
    """The mirrored table's name in the lake."""
    feed_namespace: str
    feed_name: str
    """The feed's own name in the lake."""
    state: str | None
    """Of the mirrored table."""
    paused: bool
    begins_lsn: Lsn | None
    """The frontier at which the feed begins. None: the table has not been live yet."""
    expired_lsn: Lsn
    """Changes below may be gone."""
    error: str | None
    """Why it has not got all changes. None: it has."""
    metadata_location: str | None
    """None if the Iceberg catalog does not have the feed."""
    frontier: Lsn | None
    """The frontier of the table: the feed has all changes below."""
    mirror_frontier: Lsn

    @property
    def table(self) -> TableName:
        """The mirrored table's name in the lake."""
        return TableName(self.namespace, self.name)


def read_feeds(connection: PgConnection, slot: str) -> list[ReadFeed]:
    """All feeds of a mirror. Raises SourceError."""
    with source_errors("reading the change feeds"):
        return fetch_rows(connection, ReadFeed, _SQL["feeds"], {"slot": slot})


def pin_feed(
    connection: PgConnection, feed_id: int, snapshot_id: SnapshotId, seconds: float, lease: str | None = None
) -> int | None:
    """Pins a snapshot, under the name of a lease if there is one. The caller looks afterwards whether it is still
    there. Returns the pin's ID; None if the feed is gone. Raises SourceError."""
    parameters = {"feed_id": feed_id, "snapshot_id": snapshot_id, "seconds": seconds, "lease": _suffix(lease)}
    with source_errors("pinning a change feed"):
        row = connection.execute(_SQL["pin"], parameters).fetchone()
    return None if row is None else int(row[0])


def leased_snapshots(connection: PgConnection, feed_id: int, lease: str) -> list[tuple[int, SnapshotId]]:
    """Pins of a lease on a feed that have not expired, and their snapshots, oldest first. Raises SourceError."""
    with source_errors("looking for a lease"):
        rows = connection.execute(_SQL["leased"], {"feed_id": feed_id, "lease": _suffix(lease)}).fetchall()
    return [(int(pin_id), SnapshotId(snapshot_id)) for pin_id, snapshot_id in rows]


def renew_feed_pins(connection: PgConnection, pins: Collection[int], seconds: float) -> bool:
    """Lets pins last for `seconds` from now on. False if one of them has expired. Raises SourceError."""
    with source_errors("renewing the pins of change feeds"):
        renewed = connection.execute(_SQL["renew"], {"pins": list(pins), "seconds": seconds}).rowcount
    return renewed == len(pins)


def release_feed_pins(connection: PgConnection, pins: Collection[int]) -> None:
    """Removes pins. Raises SourceError."""
    with source_errors("releasing the pins of change feeds"):
        connection.execute(_SQL["release"], {"pins": list(pins)})


def _suffix(lease: str | None) -> str | None:
    return None if lease is None else f", {lease}"
