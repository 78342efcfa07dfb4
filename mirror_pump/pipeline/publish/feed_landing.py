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
from mirror_pump.lake.document.next_metadata import without_snapshots
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, settle_feed, swap_feed
from mirror_pump.pipeline.flow.steps import unobserved
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.table_landing import same_rows, with_metadata
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import ChangeFeed, expire_feed, writable_feeds
from mirror_pump.source.connect import PgConnection, source_errors

_StageFeed = Callable[[ChangeFeed, LakeTable, WrittenFiles], LakeTable]
"""Writes the next state of a feed."""


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
        feed = self.current()
        if feed.moved_by_others:
            settle_feed(feed, self._locked, self.storage, unobserved)
        return feed.moved_by_others

    def land_rewrite(self, rewrite: FeedRewrite) -> LakeTable:
        """Returns the feed with the rewrite. Raises FileRewriteSuperseded if the feed has changed in a way that the
        rewrite does not account for, CommitConflict if the feed is gone or another engine commits at the same time,
        LakeError and SourceError."""

        def stage(feed: ChangeFeed, state: LakeTable, files: WrittenFiles) -> LakeTable:
            delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
            staged = state.stage(delta, time.time_ns() // 1_000_000, frozenset(feed.pinned))
            files.own(*staged.files)
            return staged.table

        return self._land(stage, rewrite.expired_lsn)

    def land_without_snapshots(self, expirable: Callable[[ChangeFeed, LakeTable], tuple[int, ...]]) -> LakeTable:
        """Returns the feed without the snapshots that `expirable` names. Raises as `land_rewrite`."""

        def stage(feed: ChangeFeed, state: LakeTable, files: WrittenFiles) -> LakeTable:
            removed = expirable(feed, state)
            return with_metadata(
                state, lambda metadata, at, now_ms: without_snapshots(metadata, removed, at, now_ms), files
            )

        return self._land(stage, None)

    def current(self) -> ChangeFeed:
        """The feed as the catalog has it. Raises CommitConflict if it is gone."""
        feeds = writable_feeds(self.connection, self.slot, self.feed.feed_id)
        if not feeds or feeds[0].location != self.feed.location:
            raise CommitConflict(f"{self.feed.lake_name} was removed, or made anew")
        # What a landing is staged on changes neither with time nor with the frontier.
        return replace(feeds[0], read_at=self.feed.read_at, applied_lsn=self.feed.applied_lsn)

    def _land(self, stage: _StageFeed, expired_lsn: Lsn | None) -> LakeTable:
        with WrittenFiles(self.storage) as files:
            return _OneFeed(self, stage, expired_lsn, files).land()

    @contextmanager
    def _locked(self, files: WrittenFiles, doing: str) -> Iterator[SlotLock]:
        """A transaction that lands these files, and holds the slot's lock."""
        with source_errors(doing), files.committing(self.connection, self.connection.cancel):
            yield SlotLock.take(self.connection, self.slot, Landing.stopped_seconds)


class _OneFeed(Landing[ChangeFeed, LakeTable]):
    def __init__(self, feed: FeedLanding, stage: _StageFeed, expired_lsn: Lsn | None, files: WrittenFiles) -> None:
        super().__init__(feed.connection, feed.slot, files, f"committing to {feed.feed.lake_name} in the lake")
        self._feed = feed
        self._stage = stage
        self._expired_lsn = expired_lsn

    def read(self) -> ChangeFeed:
        self._feed.settle()
        return self.look()

    def look(self) -> ChangeFeed:
        feed = self._feed.current()
        if feed.moved_by_others:
            raise FeedsMoved([feed])
        return feed

    def stage(self, base: ChangeFeed) -> LakeTable:
        state = replace(LakeTable.load(base.pointer, self.files.storage), retention=FEED_RETENTION)
        return self._stage(base, state, self.files)

    def swap(self, lock: SlotLock, base: ChangeFeed, state: LakeTable) -> None:
        if self._expired_lsn is not None:
            expire_feed(self.connection, base.feed_id, self._expired_lsn)
        swap_feed(lock, base, state)
