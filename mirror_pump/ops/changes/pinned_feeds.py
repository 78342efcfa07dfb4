"""Pins feeds for readers of an interval.

Every reader of changes comes by here. The REST catalog takes a lease for each table that a client loads, and writes a
metadata file that shows the interval alone, since engines do not know of intervals. Commands and Spark keep pins for as
long as they read, choose the rows by their positions themselves, and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from mirror_pump.source.catalog.feed_reads import ReadFeed, read_feeds
from mirror_pump.source.catalog.kept_moments import read_moments
from mirror_pump.source.catalog.pins import (
    PIN_SECONDS,
    TRIES,
    Connections,
    Pin,
    PinnedSet,
    PinRelation,
    ReaderPins,
    leased_feed_snapshots,
    of_feed,
)

BEGIN_FEED = "`mirror-pump register TABLE --alter --changes` keeps one from then on"


@dataclass(frozen=True)
class PinnedFeed:
    """A feed of which an interval is shown."""

    pins: PinnedSet
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
    lease: str,
) -> PinnedFeed:
    """Pins a snapshot of a feed for `seconds`, and writes the metadata file that shows the interval of it.

    `lease`: the name of the pin. One that bears it already is used for all intervals that its snapshot shows, whichever
    process took it: a snapshot has one pin, whatever is asked for. Raises TableError if the feed cannot show the
    interval, SourceError, LakeError.
    """
    shown = _leased(connections, slot, feed, interval, storage, seconds, lease)
    if shown is None:
        pins = PinnedSet(connections, PinRelation.FEEDS, seconds)
        shown = pins, pin_snapshot(pins, slot, feed, interval, storage, lease)
    pins, pinned = shown
    location = interval_location(pinned.metadata, pinned.pin, interval)
    if not exists(location, storage):
        write_changes(pinned.metadata, pinned.snapshot, interval, location, storage)
    return PinnedFeed(pins, location)


@dataclass(frozen=True)
class PinnedSnapshot:
    """A snapshot of a feed that was in its history once the pin was in place."""

    pin: Pin
    location: str
    """A metadata file that has it. Of a new pin, the one in which it is the current one: as young as it is, so that a
    sweep leaves the file as long as the pin lasts."""
    metadata: TableMetadata
    """What is in that file."""
    snapshot: Snapshot


def pin_snapshot(
    pins: PinnedSet,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    lease: str | None = None,
) -> PinnedSnapshot:
    """Pins the newest snapshot of a feed. It has all changes of the interval, and others. Raises TableError if the feed
    cannot show the interval, SourceError, LakeError."""

    def is_there(pin: Pin) -> bool:
        nonlocal feed
        feed = _feed(pins.connections, slot, feed)
        return read_metadata(_shown(feed, interval), storage).snapshot(pin.snapshot_id) is not None

    for _ in range(TRIES):
        location = _shown(feed, interval)
        metadata = read_metadata(location, storage)
        newest = metadata.current_snapshot
        if newest is None:
            raise _gone(feed)
        for pin in pins.take(of_feed(feed.feed_id, newest.snapshot_id, lease), is_there):
            return PinnedSnapshot(pin, location, metadata, newest)
        feed = _feed(pins.connections, slot, feed)
    raise SourceError("the feed moves faster than it can be pinned", "try again; see `mirror-pump status`")


def _shown(feed: ReadFeed, interval: ChangeInterval) -> str:
    """The metadata file of a feed that can show the interval. Raises TableError."""
    if (reason := why_left_out(feed, interval)) is not None:
        raise TableError(reason)
    assert feed.metadata_location is not None
    return feed.metadata_location


def _feed(connections: Connections, slot: str, feed: ReadFeed) -> ReadFeed:
    """The feed as it is now. Raises TableError if it is gone."""
    with connections() as connection:
        for row in read_feeds(connection, slot):
            if row.feed_id == feed.feed_id:
                return row
    raise _gone(feed)


def _gone(feed: ReadFeed) -> TableError:
    return TableError(f"{feed.table} has no change feed any more")


def _leased(
    connections: Connections,
    slot: str,
    feed: ReadFeed,
    interval: ChangeInterval,
    storage: StorageOptions,
    seconds: float,
    lease: str,
) -> tuple[PinnedSet, PinnedSnapshot] | None:
    """The oldest snapshot of a lease that shows an interval, with its pin renewed; None if there is none. Changes that
    have expired since an interval was written are still there."""
    with connections() as connection:
        leased = leased_feed_snapshots(connection, feed.feed_id, lease)
    if not leased:
        return None
    feed = _feed(connections, slot, feed)
    if feed.metadata_location is None:
        return None
    metadata = read_metadata(feed.metadata_location, storage)
    is_whole = why_left_out(feed, interval) is None
    for pin in leased:
        snapshot = metadata.snapshot(pin.snapshot_id)
        if snapshot is None:
            continue
        # The newest one has all changes; of an older one its own frontier says how far it has them.
        frontier = snapshot.summary.frontier
        reaches = snapshot == metadata.current_snapshot or (frontier is not None and frontier >= interval.until)
        if not (is_whole and reaches) and not exists(interval_location(metadata, pin, interval), storage):
            continue
        pins = PinnedSet(connections, PinRelation.FEEDS, seconds, [pin])
        if pins.renew():
            return pins, PinnedSnapshot(pin, feed.metadata_location, metadata, snapshot)
    return None


class PinnedChanges(ReaderPins):
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
        super().__init__(dsn, PinRelation.FEEDS, pin_seconds, "mirror-pump-changes", stopped)
        try:
            self.interval, feeds = interval_of(self.connections, slot, points, storage, now_ms)
            self.feeds: Mapping[TableName, ReadFeed] = {feed.table: feed for feed in feeds}
            """All feeds, by the names of their tables."""
            self.start()
        except BaseException:
            self.release()
            raise

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
        return pin_snapshot(self, self._slot, feed, interval, self._storage).location
