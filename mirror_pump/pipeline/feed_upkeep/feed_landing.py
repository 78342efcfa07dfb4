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
from mirror_pump.lake.document.next_metadata import without_snapshots
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, moved_by_others, settle_feed, swap_feed
from mirror_pump.pipeline.flow.steps import Observer, unobserved
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.table_landing import same_rows, with_metadata
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import expire_feed
from mirror_pump.source.catalog.kept_feeds import KeptFeed, kept_feeds
from mirror_pump.source.connect import PgConnection, source_errors

_StageFeed = Callable[[KeptFeed, LakeTable, WrittenFiles], LakeTable]
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
        feed = self.current()
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

        def stage(feed: KeptFeed, state: LakeTable, files: WrittenFiles) -> LakeTable:
            if written_since is not None and feed.swept_before is not None and feed.swept_before >= written_since:
                raise CommitConflict(f"a sweep may have removed the new files of {feed.lake_name}")
            delta = RowDelta((), replaces=rewrite, summary=same_rows(state))
            staged = state.stage(delta, time.time_ns() // 1_000_000, frozenset(feed.pinned))
            files.own(*staged.files)
            return staged.table

        return self._land(stage, expired_lsn)

    def land_without_snapshots(self, expirable: Callable[[KeptFeed, LakeTable], tuple[int, ...]]) -> LakeTable:
        """Returns the feed without the snapshots that `expirable` names. Raises as `land_rewrite`."""

        def stage(feed: KeptFeed, state: LakeTable, files: WrittenFiles) -> LakeTable:
            removed = expirable(feed, state)
            return with_metadata(
                state, lambda metadata, at, now_ms: without_snapshots(metadata, removed, at, now_ms), files
            )

        return self._land(stage, None)

    def _land(self, stage: _StageFeed, expired_lsn: Lsn | None) -> LakeTable:
        with WrittenFiles(self.storage) as files:
            return _OneFeed(self, stage, expired_lsn, files).land()

    def current(self) -> KeptFeed:
        """The feed as the catalog has it. Raises CommitConflict if it is gone."""
        (feed,) = kept_feeds(self.connection, self.slot, [self.feed.feed_id]) or (None,)
        if feed is None or feed.location != self.feed.location:
            raise CommitConflict(f"{self.feed.lake_name} was removed, or made anew")
        return feed

    @contextmanager
    def _locked(self, files: WrittenFiles, doing: str) -> Iterator[SlotLock]:
        """A transaction that lands these files, and holds the slot's lock."""
        with source_errors(doing), files.committing(self.connection, self.connection.cancel):
            yield SlotLock.take(self.connection, self.slot, Landing.stopped_seconds)


class _OneFeed(Landing[KeptFeed, LakeTable]):
    def __init__(self, feed: FeedLanding, stage: _StageFeed, expired_lsn: Lsn | None, files: WrittenFiles) -> None:
        super().__init__(feed.connection, feed.slot, files, f"committing to {feed.feed.lake_name} in the lake")
        self._feed = feed
        self._stage = stage
        self._expired_lsn = expired_lsn

    def read(self) -> KeptFeed:
        self._feed.settle()
        return self.look()

    def look(self) -> KeptFeed:
        feed = self._feed.current()
        if moved_by_others(feed):
            raise FeedsMoved([feed])
        return feed

    def stage(self, base: KeptFeed) -> LakeTable:
        state = replace(LakeTable.load(base.metadata_location, self.files.storage), retention=FEED_RETENTION)
        return self._stage(base, state, self.files)

    def swap(self, lock: SlotLock, base: KeptFeed, state: LakeTable) -> None:
        if self._expired_lsn is not None:
            expire_feed(self.connection, base.feed_id, self._expired_lsn)
        swap_feed(lock, base, state)
