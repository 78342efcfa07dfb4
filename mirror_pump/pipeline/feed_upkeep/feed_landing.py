"""Lands what upkeep does to a change feed: one short commit of its own, which holds the slot's lock.

The pump's publishes and all other landings wait for this lock, so the pointer moves from the state that was staged on,
or not at all. A publish that was staged meanwhile finds another pointer, and stages the feed again. Another engine's
commit is examined first.
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
from mirror_pump.model import Lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, moved_by_others, settle_feed, swap_feed
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.pipeline.operations.operation import Cursor
from mirror_pump.pipeline.publish.landing import StagedLanding, StagedState, hold_slot, same_rows
from mirror_pump.source.catalog.change_feeds import expire_feed
from mirror_pump.source.catalog.kept_feeds import KeptFeed, kept_feeds
from mirror_pump.source.connect import PgConnection

_STOPPED_SECONDS = 10
"""If this process is stopped while it holds the lock, the server ends its session after this time."""


_StageFeed = Callable[[KeptFeed, LakeTable], StagedState]
"""Writes the next state of a feed."""


@dataclass(frozen=True)
class FeedLanding:
    """Lands changes of one feed."""

    connection: PgConnection
    slot: str
    feed: KeptFeed
    storage: StorageOptions
    observer: Observer = unobserved

    def settle(self) -> bool:
        """Settles what another engine committed to the feed. Returns whether there was something to settle. Raises
        ForeignTable if it cannot be undone, CommitConflict, LakeError and SourceError."""
        feed = self._current()
        moved = moved_by_others(feed)
        if moved:
            settle_feed(feed, self._locked, self.storage, self.observer)
        return moved

    def land_rewrite(
        self, rewrite: FeedRewrite, written_since: float | None = None, expired_lsn: Lsn | None = None
    ) -> LakeTable:
        """Returns the feed with the rewrite. `written_since`: a time before its first file was begun, in seconds since
        1970; None: it has none. `expired_lsn`: the position below which changes may be gone by it.

        Raises FileRewriteSuperseded if the feed has changed in a way that the rewrite does not account for,
        CommitConflict if the feed is gone or another engine commits at the same time, LakeError and SourceError.
        """

        def stage(feed: KeptFeed, state: LakeTable) -> StagedState:
            if written_since is not None and feed.swept_before is not None and feed.swept_before >= written_since:
                raise CommitConflict(f"a sweep may have removed the new files of {feed.lake_name}")
            delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
            staged = state.stage(delta, time.time_ns() // 1_000_000, frozenset(feed.pinned))
            return StagedState(staged.table, staged.files)

        return self._land(stage, expired_lsn)

    def land_without_snapshots(self, expirable: Callable[[KeptFeed, LakeTable], tuple[int, ...]]) -> LakeTable:
        """Returns the feed without the snapshots that `expirable` names. Raises as `land_rewrite`."""

        def stage(feed: KeptFeed, state: LakeTable) -> StagedState:
            now_ms = time.time_ns() // 1_000_000
            metadata = without_snapshots(state.metadata, expirable(feed, state), state.metadata_location, now_ms)
            location = next_location(metadata, state.metadata_location)
            write_all([(location, metadata.to_json())], self.storage)
            return StagedState(replace(state, metadata=metadata, metadata_location=location), (location,))

        return self._land(stage, None)

    def _land(self, stage: _StageFeed, expired_lsn: Lsn | None) -> LakeTable:
        self.settle()

        def swap(feed: KeptFeed, after: LakeTable) -> None:
            if expired_lsn is not None:
                expire_feed(self.connection, feed.feed_id, expired_lsn)
            swap_feed(self.connection, feed, after)

        landing = StagedLanding(
            self.connection,
            self.slot,
            self.feed.lake_name,
            self.storage,
            _STOPPED_SECONDS,
            read=self._examined,
            stage=lambda feed: self._staged(stage, feed),
            swap=swap,
        )
        return landing.land()

    def _staged(self, stage: _StageFeed, feed: KeptFeed) -> StagedState:
        state = replace(LakeTable.load(feed.metadata_location, self.storage), retention=FEED_RETENTION)
        return stage(feed, state)

    def _examined(self) -> KeptFeed:
        feed = self._current()
        if moved_by_others(feed):
            raise FeedsMoved([feed])
        return feed

    def _current(self) -> KeptFeed:
        (feed,) = kept_feeds(self.connection, self.slot, [self.feed.feed_id]) or (None,)
        if feed is None or feed.location != self.feed.location:
            raise CommitConflict(f"{self.feed.lake_name} was removed, or made anew")
        return feed

    @contextmanager
    def _locked(self) -> Iterator[Cursor]:
        """A transaction that holds the slot's lock."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            hold_slot(self.connection, self.slot, _STOPPED_SECONDS)
            yield cursor
