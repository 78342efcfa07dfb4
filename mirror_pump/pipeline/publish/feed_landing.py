"""Lands what maintenance does to a change feed, whether a pump runs or not: one short commit under the slot's lock.

The pump's publishes wait for this lock. One that was staged meanwhile finds another pointer, and is staged again.
Another engine's commit is examined first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mirror_pump.errors import CommitConflict
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.next_metadata import without_snapshots
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.feeds.foreign_feed_commits import FeedsMoved, settle_feed
from mirror_pump.pipeline.flow.steps import unobserved
from mirror_pump.pipeline.landing.feed_pointers import FeedMove, move_feeds
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.table_landing import LakeTableLanding, with_metadata
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.change_feeds import ChangeFeed, writable_feeds
from mirror_pump.source.connect import PgConnection, source_errors


class FeedLanding(LakeTableLanding[ChangeFeed]):
    """Lands changes of one feed."""

    def __init__(self, connection: PgConnection, slot: str, feed: ChangeFeed, storage: StorageOptions) -> None:
        super().__init__(connection, slot, feed.lake_name, storage)
        self._feed = feed
        self._expired: Lsn | None = None
        """Changes below may be gone with what lands."""

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
        self._expired = rewrite.expired_lsn
        return self.land_change(lambda feed, state: self.stage_rewrite(state, rewrite, feed.pinned))

    def land_without_snapshots(self, expirable: Callable[[ChangeFeed, LakeTable], tuple[int, ...]]) -> LakeTable:
        """Returns the feed without the snapshots that `expirable` names. Raises as `land_rewrite`."""

        def stage(feed: ChangeFeed, state: LakeTable) -> LakeTable:
            removed = expirable(feed, state)
            return with_metadata(
                state, lambda metadata, at, now_ms: without_snapshots(metadata, removed, at, now_ms), self.files
            )

        return self.land_change(stage)

    def read(self) -> ChangeFeed:
        self.settle()
        return self.look()

    def look(self) -> ChangeFeed:
        feed = self._current()
        if feed.moved_by_others:
            raise FeedsMoved([feed])
        return feed

    def location_of(self, base: ChangeFeed) -> str:
        return base.pointer

    def load(self, base: ChangeFeed) -> LakeTable:
        return replace(super().load(base), retention=FEED_RETENTION)

    def swap(self, lock: SlotLock, base: ChangeFeed, state: LakeTable) -> None:
        move_feeds(lock, [FeedMove(base, state, expired=self._expired)])

    def _current(self) -> ChangeFeed:
        """The feed as the catalog has it. Raises CommitConflict if it is gone."""
        feeds = writable_feeds(self.connection, self.slot, self._feed.feed_id)
        if not feeds or feeds[0].location != self._feed.location:
            raise CommitConflict(f"{self._feed.lake_name} was removed, or made anew")
        # What a landing is staged on changes neither with time nor with the frontier.
        return replace(feeds[0], read_at=self._feed.read_at, applied_lsn=self._feed.applied_lsn)

    @contextmanager
    def _locked(self, files: WrittenFiles, doing: str) -> Iterator[SlotLock]:
        """A transaction that lands these files, and holds the slot's lock."""
        with source_errors(doing), files.committing(self.connection, self.connection.cancel):
            yield self.take_lock()
