"""Lands what maintenance does to a change feed, whether a pump runs or not: one short commit under the slot's lock.

The pump's publishes wait for this lock. One that was staged meanwhile finds another pointer, and is staged again.
Another engine's commit is examined first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import without_snapshots
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, settle_feed, swap_feed
from mirror_pump.pipeline.flow.steps import unobserved
from mirror_pump.pipeline.operations.operation import Cursor
from mirror_pump.pipeline.publish.landing import StagedLanding, StagedState, hold_slot, same_rows
from mirror_pump.source.catalog.change_feeds import ChangeFeed, expire_feed, writable_feeds
from mirror_pump.source.connect import PgConnection

_STOPPED_SECONDS = 10
"""If this process is stopped while it holds the lock, the server ends its session after this time."""


@dataclass(frozen=True)
class FeedLanding:
    """Lands changes of one feed."""

    connection: PgConnection
    slot: str
    feed: ChangeFeed
    storage: StorageOptions

    def settle(self) -> bool:
        """Settles what another engine committed to the feed. Returns whether there was something to settle. Raises
        ForeignTable if it cannot be undone, CommitConflict, LakeError and SourceError."""
        feed = self._current()
        if feed.moved_by_others:
            settle_feed(feed, self._locked, self.storage, unobserved)
        return feed.moved_by_others

    def land_rewrite(self, rewrite: FeedRewrite) -> LakeTable:
        """Returns the feed with the rewrite. Raises FileRewriteSuperseded if the feed has changed in a way that the
        rewrite does not account for, CommitConflict if the feed is gone or another engine commits at the same time,
        LakeError and SourceError."""

        def stage(feed: ChangeFeed, state: LakeTable) -> StagedState:
            delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
            staged = state.stage(delta, time.time_ns() // 1_000_000, frozenset(feed.pinned))
            return StagedState(staged.table, staged.files)

        return self._land(stage, rewrite)

    def land_without_snapshots(self, expirable: Callable[[ChangeFeed, LakeTable], tuple[int, ...]]) -> LakeTable:
        """Returns the feed without the snapshots that `expirable` names. Raises as `land_rewrite`."""

        def stage(feed: ChangeFeed, state: LakeTable) -> StagedState:
            now_ms = time.time_ns() // 1_000_000
            metadata = without_snapshots(state.metadata, expirable(feed, state), state.metadata_location, now_ms)
            location = next_location(metadata, state.metadata_location)
            write_all([(location, metadata.to_json())], self.storage)
            return StagedState(replace(state, metadata=metadata, metadata_location=location), (location,))

        return self._land(stage)

    def _land(
        self, stage: Callable[[ChangeFeed, LakeTable], StagedState], rewrite: FeedRewrite | None = None
    ) -> LakeTable:
        self.settle()

        def staged(feed: ChangeFeed) -> StagedState:
            return stage(feed, replace(LakeTable.load(feed.pointer, self.storage), retention=FEED_RETENTION))

        def swap(feed: ChangeFeed, after: LakeTable) -> None:
            if rewrite is not None and rewrite.expired_lsn is not None:
                expire_feed(self.connection, feed.feed_id, rewrite.expired_lsn)
            swap_feed(self.connection, feed, after)

        landing = StagedLanding(
            *(self.connection, self.slot, self.feed.lake_name, self.storage, _STOPPED_SECONDS),
            read=self._examined,
            stage=staged,
            swap=swap,
        )
        return landing.land()

    def _examined(self) -> ChangeFeed:
        feed = self._current()
        if feed.moved_by_others:
            raise FeedsMoved([feed])
        # What a landing is staged on changes neither with time nor with the frontier.
        return replace(feed, read_at=self.feed.read_at, applied_lsn=self.feed.applied_lsn)

    def _current(self) -> ChangeFeed:
        feeds = writable_feeds(self.connection, self.slot, self.feed.feed_id)
        if not feeds or feeds[0].location != self.feed.location:
            raise CommitConflict(f"{self.feed.lake_name} was removed, or made anew")
        return feeds[0]

    @contextmanager
    def _locked(self) -> Iterator[Cursor]:
        """A transaction that holds the slot's lock."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            hold_slot(self.connection, self.slot, _STOPPED_SECONDS)
            yield cursor
