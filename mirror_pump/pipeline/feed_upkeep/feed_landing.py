"""Lands what upkeep does to a change feed: one short commit of its own, which holds the slot's lock.

The pump's publishes and all other landings wait for this lock, so the pointer moves from the state that was staged on,
or not at all. A publish that was staged meanwhile finds another pointer, and stages the feed again. What is landed is
staged before the lock is taken, and again under it if the feed has changed by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirror_pump.errors import CommitConflict, ConnectionLost
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import without_snapshots
from mirror_pump.lake.document.snapshot_thinning import FEED_RETENTION
from mirror_pump.lake.storage import StorageOptions, discard, write_all
from mirror_pump.model import Lsn
from mirror_pump.pipeline.publish.landing import StagedState, hold_slot, same_rows
from mirror_pump.source.catalog.change_feeds import expire_feed
from mirror_pump.source.catalog.kept_feeds import KeptFeed, kept_feeds
from mirror_pump.source.connect import PgConnection, source_errors

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
        files: tuple[str, ...] = ()
        try:
            # Publishes wait for the lock. Most of the time nothing lands while this is staged without it.
            base = self._current()
            staged = self._staged(stage, base)
            files = staged.files
            with source_errors(f"committing to {self.feed.lake_name} in the lake"), self.connection.transaction():
                hold_slot(self.connection, self.slot, _STOPPED_SECONDS)
                feed = self._current()
                if feed != base:
                    staged = self._staged(stage, feed)
                    files += staged.files
                if expired_lsn is not None:
                    expire_feed(self.connection, feed.feed_id, expired_lsn)
                self._swap(feed, staged.table)
        except ConnectionLost:
            # It may have landed.
            raise
        except BaseException:
            discard(files, self.storage)
            raise
        discard([file for file in files if file not in staged.files], self.storage)
        return staged.table

    def _staged(self, stage: _StageFeed, feed: KeptFeed) -> StagedState:
        state = replace(LakeTable.load(feed.metadata_location, self.storage), retention=FEED_RETENTION)
        return stage(feed, state)

    def _current(self) -> KeptFeed:
        (feed,) = kept_feeds(self.connection, self.slot, [self.feed.feed_id]) or (None,)
        if feed is None or feed.location != self.feed.location:
            raise CommitConflict(f"{self.feed.lake_name} was removed, or made anew")
        return feed

    def _swap(self, feed: KeptFeed, after: LakeTable) -> None:
        location = feed.metadata_location
        if not swap_pointer(self.connection, feed.namespace, feed.name, location, after.metadata_location):
            raise CommitConflict(f"another engine committed to {feed.lake_name} in the lake")
