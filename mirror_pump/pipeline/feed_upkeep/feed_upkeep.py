"""The thread that keeps change feeds cheap to read, and no longer than they are to be.

It merges files of a feed as they accumulate, and takes those out whose changes are older than the feed keeps
(mirror_pump.engine.rewrite.feed_merge). Both land by commits of its own (feed_landing). Trouble with one feed holds up
neither the mirrored tables nor the other feeds: it is reported, and tried again after a pause.

Invariant: changes that are gone are below `modak.change_feeds.expired_lsn`, which moves in the transaction that takes
their files out of the feed. No file is deleted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from mirror_pump.engine.rewrite.feed_merge import (
    FEED_FANOUT,
    FeedFile,
    choose_neighbours,
    expired_files,
    feed_files,
    feed_listing,
    join_files,
    merge_task,
)
from mirror_pump.errors import CommitConflict, ConnectionLost, LakeError, TableError, TaskFailed
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.metadata_files import metadata_number
from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn
from mirror_pump.pipeline.feed_upkeep.feed_landing import FeedLanding
from mirror_pump.pipeline.feeds.foreign_feed_commits import moved_by_others, repair_of
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.kept_feeds import (
    KeptFeed,
    kept_feeds,
    store_feed_problem,
    store_feed_stats,
    sweep_feed_pins,
)
from mirror_pump.source.connect import PgConnection

_SHARE = 0.25
"""Largest share of time to spend on feeds, as on merges of mirrored tables."""
_TARGET_FACTOR = 4
"""A feed's files become this many times as large as the pump makes those of mirrored tables: no compaction follows."""
_FIRST_PAUSE = 1.0
_SWEEP_PAUSE = 60.0
"""Seconds between two looks for pins that have expired."""


@dataclass
class _WatchedFeed:
    """The state of one feed."""

    listing: Listing
    retries: Retries
    left_at: int = 0
    """The number of the metadata file in which nothing was left to merge."""
    expired_to: int | None = None
    """The day before which nothing is left."""


class FeedUpkeep(ThreadedService):
    """A thread of a session. If there is a feed it has a connection of its own, since it waits for the slot's lock."""

    def __init__(self, context: SessionContext, shared: SharedConnection) -> None:
        self._context = context
        self._shared = shared
        self._storage = context.storage
        self._target_bytes = _TARGET_FACTOR * context.settings.merge_bytes
        self._backoff = Backoff(_FIRST_PAUSE, context.settings.limits.retry_pause_max)
        self._watched: dict[str, _WatchedFeed] = {}
        """By location, which a feed that was made anew does not have."""
        self._sweep_due = 0.0
        self._thread = session_thread("feed-upkeep", self._run, context.inbox)

    def _run(self) -> None:
        landing = SharedConnection(self._context.connect)
        with closing(landing):
            while self._thread.next_round():
                if not self._context.backlog.comes_first:
                    self._look(landing)
                self._thread.await_wake(self._context.settings.limits.upkeep_interval)

    def _look(self, landing: SharedConnection) -> None:
        with self._shared.use() as shared:
            feeds = kept_feeds(shared, self._context.slot)
        if feeds:
            with landing.use() as connection:
                self._sweep_pins(connection)
                self._look_at(connection, feeds)

    def _sweep_pins(self, connection: PgConnection) -> None:
        if time.monotonic() >= self._sweep_due:
            sweep_feed_pins(connection, self._context.slot)
            self._sweep_due = time.monotonic() + _SWEEP_PAUSE

    def _look_at(self, connection: PgConnection, feeds: Sequence[KeptFeed]) -> None:
        watched = {feed.location: self._watched.get(feed.location) for feed in feeds}
        self._watched = {
            location: state or _WatchedFeed(feed_listing(self._storage), Retries(self._backoff))
            for location, state in watched.items()
        }
        for feed in feeds:
            if self._thread.stopping() or self._context.backlog.comes_first:
                return
            state = self._watched[feed.location]
            began = time.monotonic()
            if state.retries.due and self._keep_up(connection, feed, state):
                self._thread.pause((time.monotonic() - began) * (1 / _SHARE - 1))

    def _keep_up(self, connection: PgConnection, feed: KeptFeed, state: _WatchedFeed) -> bool:
        """Does what is due. Returns whether the feed was looked at."""
        landing = FeedLanding(connection, self._context.slot, feed, self._storage, self._context.observer)
        if moved_by_others(feed):
            self._attempt(connection, feed, state, Step.MERGE_FAILED, landing.settle)
            return True
        number = metadata_number(feed.metadata_location) or 0
        merge_due = bool(self._target_bytes) and number >= state.left_at + FEED_FANOUT
        expiry_due = feed.first_day is not None and feed.first_day != state.expired_to
        if not (merge_due or expiry_due):
            return False
        refused = expiry_due and not self._attempt(
            connection, feed, state, Step.EXPIRY_FAILED, lambda: self._expire(landing, state)
        )
        if merge_due and not refused:
            self._attempt(connection, feed, state, Step.MERGE_FAILED, lambda: self._merge(landing, state, number))
        return True

    def _attempt(
        self, connection: PgConnection, feed: KeptFeed, state: _WatchedFeed, failed: Step, work: Callable[[], object]
    ) -> bool:
        """Returns False if another writer changed the feed meanwhile."""
        try:
            with work_for(str(feed.lake_name), remedy=repair_of(feed)):
                work()
        except (CommitConflict, FileRewriteSuperseded) as error:
            self._context.observer(Step.MERGE_REFUSED, table=str(feed.lake_name), error=str(error))
            state.retries.failed()
            return False
        except (LakeError, TaskFailed, TableError) as error:
            self._context.observer(failed, table=str(feed.lake_name), error=str(error), remedy=error.remedy)
            state.retries.failed()
            store_feed_problem(connection, feed, str(error))
        else:
            state.retries.succeeded()
        return True

    def _expire(self, landing: FeedLanding, state: _WatchedFeed) -> None:
        expired = expire_changes(landing, state.listing)
        state.expired_to = landing.feed.first_day
        if expired:
            self._context.observer(Step.CHANGES_EXPIRED, table=str(landing.feed.lake_name), **expired)

    def _merge(self, landing: FeedLanding, state: _WatchedFeed, number: int) -> None:
        feed, began = landing.feed, time.time()
        # An expiry may have landed in this round.
        lake = LakeTable.load(_location(landing) or feed.metadata_location, self._storage)
        files = feed_files(lake, state.listing)
        chosen = choose_neighbours(files, self._target_bytes)
        if not chosen:
            store_feed_stats(landing.connection, feed, self._stats(files))
            state.left_at = number
            return
        name = str(feed.lake_name)
        observer = self._context.observer
        observer(Step.MERGING, table=name, data_files=len(chosen), position_files=0)
        tasks = FileTasks(self._context.runner, self._thread.stopping)
        try:
            joined = tasks.result(tasks.begin(join_files, merge_task(lake, chosen))).file
        except BaseException:
            tasks.abandon(self._storage)
            raise
        rows = joined.record_count
        observer(Step.MERGE_WRITTEN, table=name, data_files=len(chosen), position_files=0, rows=rows)
        newest = max(file.sequence_number for file in chosen)
        removed = frozenset(file.path for file in chosen)
        try:
            after = landing.land_rewrite(FeedRewrite(removed, state.listing, ((joined, newest),)), began)
        except ConnectionLost:
            # It may have landed.
            raise
        except BaseException:
            discard([joined.path], self._storage)
            raise
        store_feed_stats(landing.connection, feed, self._stats(feed_files(after, state.listing)))
        observer(Step.MERGED, table=name, data_files=len(chosen), position_files=0, bytes=joined.size_bytes)

    def _stats(self, files: Sequence[FeedFile]) -> dict[str, int]:
        return {
            "files": len(files),
            "small_files": sum(feed_file.file.size_bytes < self._target_bytes for feed_file in files),
            "rows": sum(feed_file.file.records for feed_file in files),
            "bytes": sum(feed_file.file.size_bytes for feed_file in files),
            "days": len({feed_file.file.partition for feed_file in files}),
        }


def _location(landing: FeedLanding) -> str | None:
    """Where the feed's metadata is now."""
    (feed,) = kept_feeds(landing.connection, landing.slot, [landing.feed.feed_id]) or (None,)
    return None if feed is None else feed.metadata_location


def expire_changes(landing: FeedLanding, listing: Listing) -> dict[str, int]:
    """Takes files out of a feed whose changes were all committed before its first day. Returns how many files and
    changes; nothing if there are none. Raises as `FeedLanding.land_rewrite`."""
    feed = landing.feed
    if feed.first_day is None:
        return {}
    lake = LakeTable.load(feed.metadata_location, landing.storage)
    expired = expired_files(feed_files(lake, listing), feed.first_day)
    if not expired:
        return {}
    removed = frozenset(feed_file.file.path for feed_file in expired)
    below = Lsn(max(feed_file.highest_lsn for feed_file in expired) + 1)
    landing.land_rewrite(FeedRewrite(removed, listing), expired_lsn=below)
    return {"files": len(expired), "rows": sum(feed_file.file.records for feed_file in expired)}
