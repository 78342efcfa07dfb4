"""The statement that moves the pointers of many change feeds, for holders of the slot's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.source.catalog.change_feeds import ChangeFeed
from sql import queries

_SQL = queries("change_feeds")


@dataclass(frozen=True)
class FeedMove:
    """A feed whose pointer moves."""

    feed: ChangeFeed
    """As it was when this was staged."""
    table: LakeTable
    """Its next state."""
    begins: Lsn | None = None
    """The frontier at which it begins, unless it has begun."""
    expired: Lsn | None = None
    """Changes below may be gone from now on."""
    written_since: float | None = None
    """Time before the first of the files that a task wrote for it was begun, in seconds since 1970: a sweep may have
    removed older ones. None: it has none."""

    @property
    def feed_id(self) -> TableId:
        return self.feed.feed_id


def move_feeds(lock: SlotLock, moves: Sequence[FeedMove]) -> None:
    """Moves pointers from where their commits were staged. Raises CommitConflict if one is not there, or a sweep may
    have removed files of a task."""
    if not moves:
        return
    moved = lock.connection.execute(
        _SQL["move"],
        {
            "feed_ids": [move.feed_id for move in moves],
            "old": [move.feed.pointer for move in moves],
            "new": [move.table.metadata_location for move in moves],
            "begins": [move.begins for move in moves],
            "expired": [move.expired for move in moves],
            "heads": [Jsonb(TableHead.of(move.table).to_json()) for move in moves],
            "written_since": [move.written_since for move in moves],
            "errors": [move.feed.error for move in moves],
        },
    )
    if moved.rowcount != len(moves):
        raise CommitConflict("another writer committed to a change feed in the lake, or a sweep passed its new files")
