"""Keeps change feeds cheap to read, and no longer than they are to be.

Two jobs of the common upkeep (upkeep_threads.py): the files of a feed are merged as they accumulate, and those whose
changes are older than the feed keeps are taken out (mirror_pump.engine.rewrite.feed_merge). Trouble with one feed holds
up neither the mirrored tables nor the other feeds: it is reported, and tried again after a pause.

Invariant: changes that are gone are below `modak.change_feeds.expired_lsn`, which moves in the transaction that takes
their files out of the feed. No file is deleted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mirror_pump.engine.rewrite.feed_merge import (
    FEED_FANOUT,
    FeedFile,
    choose_neighbours,
    expiry_rewrite,
    feed_files,
    feed_listing,
    join_files,
    merge_rewrite,
    merge_task,
)
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.events import FileRewriteReady
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.pipeline.upkeep.jobs import Job, new_files
from mirror_pump.pipeline.upkeep.upkeep_threads import CurrentTable, Upkeep
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.change_feeds import ChangeFeed, store_feed_problem, store_feed_stats, writable_feeds
from mirror_pump.source.connect import PgConnection

_TARGET_FACTOR = 4
"""A feed's files become this many times as large as the pump makes those of mirrored tables: no compaction follows."""


class ExpireChangesJob:
    """Takes files out of feeds whose changes were all committed before the first day that has to stay."""

    name = "feed-expiry"
    share = 0.25
    failed = Step.EXPIRY_FAILED
    idle = 0.0
    free = ""

    def __init__(self) -> None:
        self.first_days: Mapping[str, int] = {}
        """By location, the first day of feeds that do not keep all changes."""
        self._expired_to: dict[str, int] = {}
        """By location, the day before which nothing is left."""

    def due(self, lake: LakeTable, _left: LakeTable | None, /) -> int | None:
        """All feeds are alike."""
        first_day = self.first_days.get(lake.location)
        return None if first_day is None or first_day == self._expired_to.get(lake.location) else 0

    def may_become_due(self, _lake: LakeTable, _left: LakeTable | None, /) -> bool:
        """Changes expire with time, and users change how long they stay."""
        return True

    def compute(
        self, feed: ChangeFeed, lake: LakeTable, listing: Listing, _tasks: FileTasks, /
    ) -> FileRewriteReady | None:
        if feed.first_day is None:
            return None
        files = feed_files(lake, listing)
        rewrite = expiry_rewrite(files, feed.first_day, listing)
        if rewrite is None:
            self._expired_to[feed.location] = feed.first_day
            return None
        details = {"files": len(rewrite.removed), "rows": rewrite.removed_rows}
        return FileRewriteReady(feed, rewrite, Step.CHANGES_EXPIRED, Step.MERGE_REFUSED, details, time.time())


@dataclass(frozen=True)
class MergeChangesJob:
    """Merges neighbouring files of feeds, one merge at a time, and records what a feed's files are once nothing is left
    to merge."""

    target_bytes: int
    """Size in bytes from which files are left alone. 0 leaves all alone."""
    observer: Observer
    store_stats: Callable[[ChangeFeed, Mapping[str, int]], None]
    name: str = "feed-merger"
    share: float = 0.25
    """As of merges of mirrored tables."""
    failed: Step = Step.MERGE_FAILED
    idle: float = 0.0
    free: str = ""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """Ranks feeds by the number of new files."""
        new = new_files(lake.data_files, 0 if left is None else left.data_files)
        return -new if self.target_bytes and (left is None or new >= FEED_FANOUT) else None

    def may_become_due(self, lake: LakeTable, left: LakeTable | None, /) -> bool:
        """Time changes nothing."""
        return self.due(lake, left) is not None

    def compute(
        self, feed: ChangeFeed, lake: LakeTable, listing: Listing, tasks: FileTasks, /
    ) -> FileRewriteReady | None:
        began = time.time()
        files = feed_files(lake, listing)
        chosen = choose_neighbours(files, self.target_bytes)
        if not chosen:
            self.store_stats(feed, self._stats(files))
            return None
        name, count = str(feed.lake_name), len(chosen)
        self.observer(Step.MERGING, table=name, data_files=count, position_files=0)
        joined = tasks.result(tasks.begin(join_files, merge_task(lake, chosen))).file
        rows = joined.record_count
        self.observer(Step.MERGE_WRITTEN, table=name, data_files=count, position_files=0, rows=rows)
        details = {"data_files": count, "position_files": 0, "bytes": joined.size_bytes}
        rewrite = merge_rewrite(chosen, joined, listing)
        return FileRewriteReady(feed, rewrite, Step.MERGED, Step.MERGE_REFUSED, details, began)

    def _stats(self, files: Sequence[FeedFile]) -> dict[str, int]:
        return {
            "files": len(files),
            "small_files": sum(feed_file.file.size_bytes < self.target_bytes for feed_file in files),
            "rows": sum(feed_file.file.records for feed_file in files),
            "bytes": sum(feed_file.file.size_bytes for feed_file in files),
            "days": len({feed_file.file.partition for feed_file in files}),
        }


class FeedUpkeep(Upkeep[ChangeFeed]):
    """Keeps the change feeds of one mirror, and its table of transactions."""

    def __init__(self, context: SessionContext, shared: SharedConnection) -> None:
        """`shared`: for short queries of these threads and others."""
        self._expiry = ExpireChangesJob()
        self._look_due = 0.0
        target_bytes = _TARGET_FACTOR * context.settings.merge_bytes
        merges = MergeChangesJob(target_bytes, context.observer, self._store_stats)
        super().__init__(context, shared, (self._expiry, merges))

    def _look(self) -> None:
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + self._look_interval
        with self._shared.use() as connection:
            feeds = writable_feeds(connection, self._slot)
        first_days = {feed.location: feed.first_day for feed in feeds if feed.first_day is not None}
        with self._changed:
            self._expiry.first_days = first_days

    def _locations(self, connection: PgConnection) -> Sequence[tuple[int, str]]:
        return [(feed.feed_id, feed.pointer) for feed in writable_feeds(connection, self._slot)]

    def _current(
        self, connection: PgConnection, _job: Job[ChangeFeed], table_id: TableId
    ) -> CurrentTable[ChangeFeed] | None:
        feeds = writable_feeds(connection, self._slot, table_id)
        if not feeds:
            # Its next publish has it kept again.
            return None
        (feed,) = feeds
        # The loop settles another engine's commit first.
        return CurrentTable(feed, None if feed.moved_by_others else feed.pointer)

    def _listing(self, lake: LakeTable) -> Listing:
        return feed_listing(lake.storage)

    def _work(self, subject: ChangeFeed) -> AbstractContextManager[None]:
        return work_for(str(subject.lake_name), remedy=subject.repair())

    def _report(
        self, job: Job[ChangeFeed], table_id: TableId, subject: ChangeFeed | None, error: MirrorPumpError
    ) -> None:
        name = str(table_id if subject is None else subject.lake_name)
        self._observer(job.failed, table=name, error=str(error), remedy=error.remedy)
        if subject is not None:
            with self._shared.use() as connection:
                store_feed_problem(connection, subject, str(error))

    def _store_stats(self, feed: ChangeFeed, stats: Mapping[str, int]) -> None:
        with self._shared.use() as connection:
            store_feed_stats(connection, feed, stats)
