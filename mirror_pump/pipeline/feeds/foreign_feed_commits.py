"""Examines what other engines committed to a change feed before the mirror builds on it. Rewrites stay, changes of rows
are undone, as of mirrored tables (mirror_pump.lake.commit.table_head).

Invariant: `modak.change_feeds.head` is the state that the mirror made or has examined, and each commit of the mirror
builds on that state. The pointer and the head move in one transaction, from where both were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, FileDamaged, FileMissing, ForeignTable, LakeError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead, changed_rows, restored
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import ChangeFeed
from sql import queries

_SQL = queries("change_feeds")


LockedTransaction = Callable[[WrittenFiles, str], AbstractContextManager[SlotLock]]
"""A transaction that lands these files, and that holds the slot's lock. The text completes "while ..." in errors."""


class FeedsMoved(CommitConflict):
    """Other engines have committed to change feeds. What they did is examined first."""

    def __init__(self, feeds: Sequence[ChangeFeed]) -> None:
        names = ", ".join(str(feed.lake_name) for feed in feeds)
        super().__init__(f"another engine committed to {names} in the lake")
        self.feeds = feeds


def change_of_rows(feed: ChangeFeed, table: LakeTable) -> str | None:
    """What other engines did to the rows of a feed; None if `table` holds those of its head."""
    return None if feed.head is None else changed_rows(TableHead.from_json(feed.head), table, feed.pinned)


def swap_feed(lock: SlotLock, feed: ChangeFeed, after: LakeTable) -> None:
    """Makes `after` the feed's state. Raises CommitConflict if another writer has committed since."""
    if feed.metadata_location is not None:
        lock.move(feed.lake_name, feed.metadata_location, after.metadata_location)
    if feed.metadata_location is None or not _record_examined(lock, feed, after):
        raise CommitConflict(f"another writer committed to {feed.lake_name} in the lake")


def settle_feed(
    feed: ChangeFeed,
    locked: LockedTransaction,
    storage: StorageOptions,
    observer: Observer,
) -> None:
    """Records another engine's rewrite as the feed's state, or undoes its change of rows.

    Raises ForeignTable if it cannot be undone, which readers are told from then on; CommitConflict if the
    pointer has moved again, LakeError, SourceError.
    """
    name = feed.lake_name
    table = LakeTable.load(feed.pointer, storage)
    reason = change_of_rows(feed, table)
    if reason is None:
        with locked(WrittenFiles(storage), f"recording another engine's rewrite of {name}") as lock:
            _record_examined(lock, feed, table)
        return
    assert feed.head is not None
    try:
        after = restored(TableHead.from_json(feed.head), table, time.time_ns() // 1_000_000, feed.pinned)
    except ForeignTable as error:
        lost = ForeignTable(f"another engine {reason} in {name}, and its history lacks the former state", feed.repair())
        with locked(WrittenFiles(storage), f"recording what another engine did to {name}") as lock:
            lock.connection.execute(_SQL["broken"], {"feed_ids": [feed.feed_id], "errors": [error_of_feed(lost, feed)]})
        raise lost from error
    with WrittenFiles(storage) as files:
        files.own(after.metadata_location)
        with locked(files, f"undoing another engine's commit to {name}") as lock:
            swap_feed(lock, feed, after)
    observer(Step.FOREIGN_COMMIT_UNDONE, table=str(name), reason=reason, metadata=feed.pointer)


def error_of_feed(error: LakeError | TableError, feed: ChangeFeed) -> str:
    """Why a feed cannot be written, for `modak.change_feeds.error`."""
    of_file = isinstance(error, FileMissing | FileDamaged)
    return f"{error}: {feed.repair(of_file=True) if of_file else error.remedy}"


def _record_examined(lock: SlotLock, feed: ChangeFeed, table: LakeTable) -> bool:
    """Returns False if another state was recorded meanwhile."""
    parameters = {
        "feed_id": feed.feed_id,
        "former": None if feed.head is None else Jsonb(dict(feed.head)),
        "head": Jsonb(TableHead.of(table).to_json()),
    }
    return lock.connection.execute(_SQL["examined"], parameters).rowcount == 1
