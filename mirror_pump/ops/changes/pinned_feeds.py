"""Pins feeds for readers of an interval.

Every reader of changes comes by here. The REST catalog takes a lease for each table that a client loads, and writes a
metadata file that shows the interval alone, since engines do not know of intervals. Commands and Spark keep pins for as
long as they read, choose the rows by their positions themselves, and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Self

from mirror_pump.errors import SourceError, TableError, UsageError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, exists
from mirror_pump.model import Lsn, TableName
from mirror_pump.ops.changes.interval_tables import (
    interval_location,
    published_frontiers,
    why_left_out,
    write_changes,
)
from mirror_pump.ops.changes.points import ChangeInterval, ChangePoints, resolve
from mirror_pump.source.catalog.feed_reads import (
    ReadFeed,
    leased_snapshots,
    pin_feed,
    read_feeds,
    release_feed_pins,
    renew_feed_pins,
)
from mirror_pump.source.catalog.kept_moments import read_moments
from mirror_pump.source.catalog.pin_keeper import PIN_SECONDS, PinKeeper
from mirror_pump.source.connect import PgConnection, connect

_TRIES = 20
"""Attempts to pin. Each fails only if the snapshot is thinned out within the milliseconds that it takes."""
BEGIN_FEED = "`mirror-pump register TABLE --alter --changes` keeps one from then on"

Connections = Callable[[], AbstractContextManager[PgConnection]]
"""Gives a connection in autocommit mode, for one query or a few."""


@dataclass(frozen=True)
class PinnedFeed:
    """A feed of which an interval is shown."""

    pin_id: int
    location: str
    """The metadata file whose current and only snapshot has the rows of the interval."""


def interval_of(
    connections: Connections, slot: str, points: ChangePoints, storage: StorageOptions, now_ms: int
) -> tuple[ChangeInterval, list[ReadFeed]]:
    """The positions that two points stand for, and all feeds. Raises UsageError, SourceError, LakeError."""
    with connections() as connection:
        feeds = read_feeds(connection, slot)
        moments = {moment.name: moment.frontier for moment in read_moments(connection, slot)}
    if not feeds:
        raise UsageError("no table of this mirror has a change feed", BEGIN_FEED)
    frontier = feeds[0].mirror_frontier
    return resolve(points, frontier, lambda: published_frontiers(feeds, storage), moments.get, now_ms), feeds


def pin_interval(
    connections: Connections,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    seconds: float,
    lease: str | None = None,
) -> PinnedFeed:
    """Pins a snapshot of a feed for `seconds`, and writes the metadata file that shows the interval of it.

    `lease`: the name of the pin. One that bears it already is used for all intervals that its snapshot shows, whichever
    process took it: a snapshot has one pin, whatever is asked for. Raises TableError if the feed cannot show the
    interval, SourceError, LakeError.
    """
    pinned = None if lease is None else _leased(connections, slot, feed, interval, storage, seconds, lease)
    if pinned is None:
        pinned = pin_snapshot(connections, slot, feed, interval, storage, seconds, lease)
    location = interval_location(pinned.metadata, pinned.pin_id, pinned.snapshot, interval)
    if not exists(location, storage):
        write_changes(pinned.metadata, pinned.snapshot, interval, location, storage)
    return PinnedFeed(pinned.pin_id, location)


@dataclass(frozen=True)
class PinnedSnapshot:
    """A snapshot of a feed that was in its history once the pin was in place."""

    pin_id: int
    location: str
    """A metadata file that has it. Of a new pin, the one in which it is the current one: as young as it is, so that a
    sweep leaves the file as long as the pin lasts."""
    metadata: TableMetadata
    """What is in that file."""
    snapshot: Snapshot


def pin_snapshot(
    connections: Connections,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    seconds: float,
    lease: str | None = None,
) -> PinnedSnapshot:
    """Pins the newest snapshot of a feed for `seconds`. It has all changes of the interval, and others. Raises
    TableError if the feed cannot show the interval, SourceError, LakeError."""
    for _ in range(_TRIES):
        pinned, feed = _pinned(connections, slot, feed, interval, storage, seconds, lease)
        if pinned is not None:
            return pinned
    raise SourceError("the feed moves faster than it can be pinned", "try again; see `mirror-pump status`")


def _leased(
    connections: Connections,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    seconds: float,
    lease: str,
) -> PinnedSnapshot | None:
    """The oldest snapshot of a lease that shows an interval, with its pin renewed; None if there is none. Changes that
    have expired since an interval was written are still there."""
    with connections() as connection:
        pins = leased_snapshots(connection, feed.feed_id, lease)
        leased_feed = next((row for row in read_feeds(connection, slot) if row.feed_id == feed.feed_id), None)
    if not pins or leased_feed is None or leased_feed.metadata_location is None:
        return None
    metadata = read_metadata(leased_feed.metadata_location, storage)
    is_whole = why_left_out(leased_feed, interval) is None
    for pin_id, snapshot_id in pins:
        snapshot = metadata.snapshot(snapshot_id)
        if snapshot is None:
            continue
        # The newest one has all changes; of an older one its own frontier says how far it has them.
        frontier = snapshot.summary.frontier
        reaches = snapshot == metadata.current_snapshot or (frontier is not None and frontier >= interval.until)
        location = interval_location(metadata, pin_id, snapshot, interval)
        if not (is_whole and reaches) and not exists(location, storage):
            continue
        with connections() as connection:
            if renew_feed_pins(connection, [pin_id], seconds):
                return PinnedSnapshot(pin_id, leased_feed.metadata_location, metadata, snapshot)
    return None


def _pinned(
    connections: Connections,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    seconds: float,
    lease: str | None,
) -> tuple[PinnedSnapshot | None, ReadFeed]:
    """A pin on the newest snapshot; None if it came too late. And the feed as it was after that."""
    if (reason := why_left_out(feed, interval)) is not None:
        raise TableError(reason)
    assert feed.metadata_location is not None
    metadata = read_metadata(feed.metadata_location, storage)
    newest = metadata.current_snapshot
    gone = f"{feed.namespace}.{feed.name} has no change feed any more"
    if newest is None:
        raise TableError(gone)
    with connections() as connection:
        pin_id = pin_feed(connection, feed.feed_id, newest.snapshot_id, seconds, lease)
        if pin_id is None:
            raise TableError(gone)
        pinned_feed = next((row for row in read_feeds(connection, slot) if row.feed_id == feed.feed_id), None)
        reason = gone if pinned_feed is None else why_left_out(pinned_feed, interval)
        if pinned_feed is None or reason is not None:
            release_feed_pins(connection, [pin_id])
            raise TableError(reason or gone)
    assert pinned_feed.metadata_location is not None
    if read_metadata(pinned_feed.metadata_location, storage).snapshot(newest.snapshot_id) is None:
        # A sweep refuses to work while a snapshot is pinned that is not in the history.
        with connections() as connection:
            release_feed_pins(connection, [pin_id])
        return None, pinned_feed
    return PinnedSnapshot(pin_id, feed.metadata_location, metadata, newest), pinned_feed


class PinnedChanges:
    """Changes of an interval that one reader reads. A context manager, which keeps what is read until it is left.

    Raises UsageError, SourceError, LakeError.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        points: ChangePoints,
        storage: StorageOptions,
        now_ms: int,
        *,
        stopped: Callable[[], bool] = lambda: False,
        pin_seconds: float = PIN_SECONDS,
    ) -> None:
        """`stopped` is called once a second; when it returns True, because the reader is gone, the pins are
        released."""
        self._slot = slot
        self._storage = storage
        self._pin_seconds = pin_seconds
        self._pins: list[int] = []
        self._released = False
        self._keeper = PinKeeper(
            "read-changes", pin_seconds, renew=self._renew_pins, stopped=stopped, release=self.release
        )
        self.connection = connect(dsn, autocommit=True, application_name="mirror-pump-changes")
        try:
            self.interval, feeds = interval_of(self._connections, slot, points, storage, now_ms)
            self.feeds: Mapping[TableName, ReadFeed] = {feed.table: feed for feed in feeds}
            """All feeds, by the names of their tables."""
        except BaseException:
            self.connection.close()
            raise
        self._keeper.start()

    @property
    def frontier(self) -> Lsn:
        """The end of the interval: what a reader remembers, to go on from there."""
        return self.interval.until

    def left_out(self) -> dict[TableName, str]:
        """The feeds that cannot show the interval, and why."""
        reasons = {name: why_left_out(feed, self.interval) for name, feed in self.feeds.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def locate(self, feed: ReadFeed, interval: ChangeInterval) -> str:
        """A metadata file whose current snapshot has all changes of an interval of a feed, and others. Raises
        TableError if the feed cannot show it."""
        pinned = pin_snapshot(self._connections, self._slot, feed, interval, self._storage, self._pin_seconds)
        self._pins.append(pinned.pin_id)
        return pinned.location

    def check(self) -> None:
        """Raises SourceError if a pin was lost while in use. Rows read since may be incomplete."""
        self._keeper.check()

    def release(self) -> None:
        """Releases the pins. Does nothing the second time."""
        if self._released:
            return
        self._released = True
        self._keeper.stop()
        if not self.connection.closed:
            with suppress(SourceError):
                release_feed_pins(self.connection, self._pins)
        self.connection.close()

    def _connections(self) -> AbstractContextManager[PgConnection]:
        return nullcontext(self.connection)

    def _renew_pins(self) -> bool:
        return renew_feed_pins(self.connection, list(self._pins), self._pin_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
