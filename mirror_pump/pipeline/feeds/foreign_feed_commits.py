"""Examines what other engines committed to a change feed before the mirror builds on it. Rewrites stay, changes of rows
are undone, as of mirrored tables (mirror_pump.lake.commit.table_head).

Invariant: `modak.change_feeds.head` is the state that the mirror made or has examined, and each commit of the mirror
builds on that state. The pointer and the head move in one transaction, from where both were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, FileDamaged, FileMissing, ForeignTable, LakeError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows, restored
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode, TableName
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import feed_repair
from sql import queries

_SQL = queries("change_feeds")


class FeedPointer(Protocol):
    """A change feed as the catalog has it."""

    @property
    def feed_id(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def keep(self) -> timedelta | None: ...
    @property
    def schema_name(self) -> str | None: ...
    @property
    def table_name(self) -> str | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def metadata_location(self) -> str | None: ...
    @property
    def head(self) -> Mapping[str, Any] | None: ...
    @property
    def pinned(self) -> Sequence[int]: ...


LockedTransaction = Callable[[WrittenFiles, str], AbstractContextManager[SlotLock]]
"""A transaction that lands these files, and that holds the slot's lock. The text completes "while ..." in errors."""


class FeedsMoved(CommitConflict):
    """Other engines have committed to change feeds. What they did is examined first."""

    def __init__(self, feeds: Sequence[FeedPointer]) -> None:
        names = ", ".join(str(TableName(feed.namespace, feed.name)) for feed in feeds)
        super().__init__(f"another engine committed to {names} in the lake")
        self.feeds = feeds


def moved_by_others(feed: FeedPointer) -> bool:
    """Whether the pointer is not where the mirror left it. One that is gone has not moved."""
    location = feed.metadata_location
    return location is not None and (feed.head is None or feed.head["location"] != location)


def change_of_rows(feed: FeedPointer, table: LakeTable) -> str | None:
    """What other engines did to the rows of a feed; None if `table` holds those of its head."""
    return None if feed.head is None else changed_rows(TableHead.from_json(feed.head), table, feed.pinned)


def swap_feed(lock: SlotLock, feed: FeedPointer, after: LakeTable) -> None:
    """Makes `after` the feed's state. Raises CommitConflict if another writer has committed since."""
    name = TableName(feed.namespace, feed.name)
    if feed.metadata_location is not None:
        lock.move(name, feed.metadata_location, after.metadata_location)
    if feed.metadata_location is None or not _record_examined(lock, feed, after):
        raise CommitConflict(f"another writer committed to {name} in the lake")


def settle_feed(
    feed: FeedPointer,
    locked: LockedTransaction,
    storage: StorageOptions,
    observer: Observer,
) -> None:
    """Records another engine's rewrite as the feed's state, or undoes its change of rows.

    Raises ForeignTable if it cannot be undone, which readers are told from then on; CommitConflict if the
    pointer has moved again, LakeError, SourceError.
    """
    assert feed.metadata_location is not None
    name = TableName(feed.namespace, feed.name)
    table = LakeTable.load(feed.metadata_location, storage)
    reason = change_of_rows(feed, table)
    if reason is None:
        with locked(WrittenFiles(storage), f"recording another engine's rewrite of {name}") as lock:
            _record_examined(lock, feed, table)
        return
    assert feed.head is not None
    try:
        after = restored(TableHead.from_json(feed.head), table, time.time_ns() // 1_000_000, feed.pinned)
    except ForeignTable as error:
        lost = ForeignTable(
            f"another engine {reason} in {name}, and its history lacks the former state", repair_of(feed)
        )
        with locked(WrittenFiles(storage), f"recording what another engine did to {name}") as lock:
            lock.connection.execute(_SQL["broken"], {"feed_ids": [feed.feed_id], "errors": [error_of_feed(lost, feed)]})
        raise lost from error
    with WrittenFiles(storage) as files:
        files.own(after.metadata_location)
        with locked(files, f"undoing another engine's commit to {name}") as lock:
            swap_feed(lock, feed, after)
    observer(Step.FOREIGN_COMMIT_UNDONE, table=str(name), reason=reason, metadata=feed.metadata_location)


def error_of_feed(error: LakeError | TableError, feed: FeedPointer) -> str:
    """Why a feed cannot be written, for `modak.change_feeds.error`."""
    of_file = isinstance(error, FileMissing | FileDamaged)
    return f"{error}: {repair_of(feed, of_file=True) if of_file else error.remedy}"


def repair_of(feed: FeedPointer, *, of_file: bool = False) -> str:
    """What to do about a feed that cannot be written. `of_file`: because a file of it is lost or damaged."""
    # A feed whose registration has ended is called as in the lake.
    table = TableName(feed.schema_name or feed.namespace, feed.table_name or feed.name)
    return feed_repair(str(table), FeedMode(feed.mode), feed.keep, of_file=of_file)


def _record_examined(lock: SlotLock, feed: FeedPointer, table: LakeTable) -> bool:
    """Returns False if another state was recorded meanwhile."""
    parameters = {
        "feed_id": feed.feed_id,
        "former": None if feed.head is None else Jsonb(dict(feed.head)),
        "head": Jsonb(TableHead.of(table).to_json()),
    }
    return lock.connection.execute(_SQL["examined"], parameters).rowcount == 1
