"""The statement that moves the pointers of many change feeds, for holders of the slot's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.lake.commit.row_delta import StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from sql import queries

_SQL = queries("change_feeds")


@dataclass(frozen=True)
class FeedMove:
    """A feed whose pointer moves."""

    feed_id: TableId
    commit: StagedCommit
    begins: Lsn | None
    """Where the feed begins, unless it has begun. None: that stays open."""


def move_feeds(lock: SlotLock, moves: Sequence[FeedMove]) -> set[TableId]:
    """Moves pointers that are where their commits were staged. Returns the feeds of these."""
    if not moves:
        return set()
    rows = lock.connection.execute(
        _SQL["move"],
        {
            "feed_ids": [move.feed_id for move in moves],
            "old": [move.commit.old_location for move in moves],
            "new": [move.commit.new_location for move in moves],
            "begins": [move.begins for move in moves],
            "heads": [Jsonb(TableHead.of(move.commit.table).to_json()) for move in moves],
        },
    )
    return {TableId(feed_id) for (feed_id,) in rows.fetchall()}
