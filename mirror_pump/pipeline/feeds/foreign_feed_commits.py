"""What other engines committed to change feeds. `modak.change_feeds.head` is the state that the mirror made or has
examined (mirror_pump.pipeline.landing.foreign_commit)."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, FileDamaged, FileMissing, ForeignTable, LakeError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.landing.foreign_commit import ForeignCommit, LockedTransaction
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import ChangeFeed
from sql import queries

_SQL = queries("change_feeds")


class FeedsMoved(CommitConflict):
    """Other engines have committed to change feeds. What they did is examined first."""

    def __init__(self, feeds: Sequence[ChangeFeed]) -> None:
        names = ", ".join(str(feed.lake_name) for feed in feeds)
        super().__init__(f"another engine committed to {names} in the lake")
        self.feeds = feeds


def foreign_commit(feed: ChangeFeed, table: LakeTable) -> ForeignCommit:
    """What other engines committed to a feed, whose state is `table` now."""
    head = None if feed.head is None else TableHead.from_json(feed.head)

    def record(lock: SlotLock, state: TableHead) -> bool:
        parameters = {
            "feed_id": feed.feed_id,
            "former": None if feed.head is None else Jsonb(dict(feed.head)),
            "head": Jsonb(state.to_json()),
        }
        return lock.connection.execute(_SQL["examined"], parameters).rowcount == 1

    return ForeignCommit(feed.lake_name, feed.lake_name, table, head, feed.pinned, record)


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
    name, commit = feed.lake_name, foreign_commit(feed, LakeTable.load(feed.pointer, storage))
    try:
        reason = commit.settle(locked)
    except ForeignTable as error:
        text = f"another engine {commit.change_of_rows} in {name}, and its history lacks the former state"
        lost = ForeignTable(text, feed.repair())
        with locked(WrittenFiles(storage), f"recording what another engine did to {name}") as lock:
            lock.connection.execute(_SQL["broken"], {"feed_ids": [feed.feed_id], "errors": [error_of_feed(lost, feed)]})
        raise lost from error
    if reason is not None:
        observer(Step.FOREIGN_COMMIT_UNDONE, table=str(name), reason=reason, metadata=feed.pointer)


def error_of_feed(error: LakeError | TableError, feed: ChangeFeed) -> str:
    """Why a feed cannot be written, for `modak.change_feeds.error`."""
    of_file = isinstance(error, FileMissing | FileDamaged)
    return f"{error}: {feed.repair(of_file=True) if of_file else error.remedy}"
