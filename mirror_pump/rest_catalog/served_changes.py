"""Changes of an interval as clients of the catalog see them.

Invariant: a client that attached an interval gets its changes, all and no others, in every load. The prefix of its
paths names both positions, and any snapshot of a feed that has these changes shows the same rows. So nothing is chosen
when a client attaches: a table is pinned when it is loaded, by a lease that each load renews, and by which any server
finds the snapshot and what was written of it. A table whose changes have expired between attach and load gives an
error, never fewer rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableName
from mirror_pump.ops.changes.interval_tables import why_left_out
from mirror_pump.ops.changes.pinned_feeds import PinnedFeed, interval_of, pin_interval
from mirror_pump.ops.changes.points import ChangePoints
from mirror_pump.rest_catalog.attachment_names import ChangesAttachment
from mirror_pump.rest_catalog.protocol import ProtocolError, bad_request, no_such_table
from mirror_pump.source.catalog.feed_reads import ReadFeed, read_feeds
from mirror_pump.source.catalog.served_tables import ServedCatalog
from mirror_pump.source.connect import PgConnection

_LEASE = "mirror-pump serves changes"
"""The name of the lease, which is that of all intervals: a snapshot that shows several has one pin."""


@dataclass
class _LoadedChanges:
    """A table of an interval that clients have loaded."""

    pinned: PinnedFeed | None = None
    since: float = field(default_factory=time.monotonic)
    """When a client asked for it first, by time.monotonic()."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """So that loads at the same time write the table's files once."""


class ServedChanges:
    """The intervals that clients read. Threads share it."""

    def __init__(self, catalog: ServedCatalog, storage: StorageOptions, lease: float, most: int) -> None:
        """`lease`: seconds that a table of an interval lasts after its last load. `most`: how many intervals there may
        be at a time of which tables have been loaded."""
        self._catalog = catalog
        self._storage = storage
        self._lease = lease
        self._most = most
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, TableName], _LoadedChanges] = {}

    def attach(self, points: ChangePoints) -> tuple[ChangesAttachment, Mapping[TableName, str]]:
        """The interval that a client asks for, and the tables that cannot be shown in it, with the reasons. Raises
        ProtocolError, SourceError, LakeError."""
        try:
            interval, feeds = interval_of(
                self._connections, self._catalog.slot, points, self._storage, time.time_ns() // 1_000_000
            )
        except UsageError as error:
            raise bad_request(f"{error}; {error.remedy}") from None
        reasons = {feed.table: why_left_out(feed, interval) for feed in feeds}
        return ChangesAttachment(interval), {name: reason for name, reason in reasons.items() if reason is not None}

    def names(self, attachment: ChangesAttachment) -> list[TableName]:
        """The tables of an interval, in order. Raises SourceError."""
        return sorted(feed.table for feed in self._feeds() if why_left_out(feed, attachment.interval) is None)

    def whole_feeds(self) -> Mapping[TableName, str]:
        """The metadata files of all feeds as they are now, by their own names in the lake. Raises SourceError."""
        return {
            TableName(feed.feed_namespace, feed.feed_name): feed.metadata_location
            for feed in self._feeds()
            if feed.metadata_location is not None
        }

    def location(self, attachment: ChangesAttachment, name: TableName) -> str:
        """The metadata file that shows a table. Raises ProtocolError if none can, SourceError, LakeError."""
        loaded = self._entry(attachment, name)
        with loaded.lock:
            try:
                if loaded.pinned is None or not loaded.pinned.pins.keep():
                    loaded.pinned = self._pinned(attachment, name)
            except BaseException:
                # What cannot be loaded is forgotten.
                loaded.pinned, loaded.since = None, -math.inf
                raise
            return loaded.pinned.location

    def _pinned(self, attachment: ChangesAttachment, name: TableName) -> PinnedFeed:
        feed = next((row for row in self._feeds() if row.table == name), None)
        if feed is None:
            raise no_such_table(name.schema, name.name)
        try:
            return pin_interval(
                self._connections, self._catalog.slot, feed, attachment.interval, self._storage, self._lease, _LEASE
            )
        except TableError as error:
            raise bad_request(str(error)) from None

    def _entry(self, attachment: ChangesAttachment, name: TableName) -> _LoadedChanges:
        """What is known of a table of an interval. Forgets those whose leases are over; raises ProtocolError if there
        are too many intervals still."""
        with self._lock:
            now = time.monotonic()
            self._loaded = {
                key: table
                for key, table in self._loaded.items()
                if table.lock.locked()
                or (now - table.since < self._lease if table.pinned is None else not table.pinned.pins.may_be_over)
            }
            intervals = {prefix for prefix, _ in self._loaded}
            if attachment.prefix not in intervals and len(intervals) >= self._most:
                raise ProtocolError(
                    503,
                    "ServiceUnavailableException",
                    f"changes of {self._most} intervals are being read, which is the most: attach fewer at a time, or"
                    " again in some minutes",
                )
            return self._loaded.setdefault((attachment.prefix, name), _LoadedChanges())

    def _feeds(self) -> list[ReadFeed]:
        with self._connections() as connection:
            return read_feeds(connection, self._catalog.slot)

    def _connections(self) -> AbstractContextManager[PgConnection]:
        return self._catalog.connection("reading change feeds")
