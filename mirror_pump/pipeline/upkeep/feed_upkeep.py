"""Keeps change feeds cheap to read, and no longer than they are to be.

A job of the common upkeep (upkeep_threads.py): the files of a feed are merged as they accumulate, and those whose
changes are older than the feed keeps are taken out (mirror_pump.engine.rewrite.feed_merge). Trouble with one feed holds
up neither the mirrored tables nor the other feeds: it is reported, and tried again after a pause.

Invariant: changes that are gone are below `modak.change_feeds.expired_lsn`, which moves in the transaction that takes
their files out of the feed. No file is deleted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pump.engine.rewrite.feed_merge import (
    FEED_FANOUT,
    FeedFile,
    choose_neighbours,
    expiry_rewrite,
    feed_files,
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
from mirror_pump.pipeline.upkeep.upkeep_threads import CurrentTable, JobTurn, Upkeep
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.change_feeds import ChangeFeed, store_feed_problem, store_feed_stats, writable_feeds
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.unchanged_server import UnchangedServer

_TARGET_FACTOR = 4
"""A feed's files become this many times as large as the pump makes those of mirrored tables: no compaction follows."""


@dataclass
class FeedJob:
    """Takes files out of feeds whose changes were all committed before the first day that has to stay, and merges
    neighbouring files, one merge at a time."""

    target_bytes: int
    """Size in bytes from which files are left alone by merges. 0: nothing is merged."""
    observer: Observer
    store_stats: Callable[[ChangeFeed, Mapping[str, int]], None]
    """Records what a feed's files are once nothing is left to do."""
    name: str = "feed-upkeep"
    share: float = 0.25
    """As of merges of mirrored tables."""
    failed: Step = Step.MERGE_FAILED
    idle: float = 0.0
    free: str = ""
    first_days: Mapping[str, int] = field(default_factory=dict)
    """By location, the first day that has to stay, of feeds that do not keep all changes."""
    expired_to: dict[str, int] = field(default_factory=dict)
    """By location, the day before which nothing is left."""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """Ranks feeds by the number of new files. What expires comes first."""
        first_day = self.first_days.get(lake.location)
        if first_day is not None and first_day != self.expired_to.get(lake.location):
            return -lake.data_files
        new = new_files(lake.data_files, 0 if left is None else left.data_files)
        return -new if self.target_bytes and (left is None or new >= FEED_FANOUT) else None

    def may_become_due(self, _lake: LakeTable, _left: LakeTable | None, /) -> bool:
        """Changes expire with time, and users change how long they stay."""
        return True

    def compute(
        self, feed: ChangeFeed, lake: LakeTable, listing: Listing, tasks: FileTasks, /
    ) -> FileRewriteReady | None:
        began = time.time()
        files = feed_files(lake, listing)
        if feed.first_day is not None:
            expiry = expiry_rewrite(files, feed.first_day, listing)
            if expiry is not None:
                details = {"files": len(expiry.removed), "rows": expiry.removed_rows}
                return FileRewriteReady(feed, expiry, Step.CHANGES_EXPIRED, Step.MERGE_REFUSED, details, began)
            self.expired_to[feed.location] = feed.first_day
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
        self._look_due = 0.0
        self._unchanged = UnchangedServer()
        target_bytes = _TARGET_FACTOR * context.settings.merge_bytes
        self._job = FeedJob(target_bytes, context.observer, self._store_stats)
        super().__init__(context, shared, [self._job])

    def _look(self) -> None:
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + self._look_interval
        if self._unchanged.skips(self._shared.snapshot(self._look_interval)):
            return
        with self._shared.use() as connection:
            feeds = writable_feeds(connection, self._slot)
        first_days = {feed.location: feed.first_day for feed in feeds if feed.first_day is not None}
        with self._changed:
            self._job.first_days = first_days
        # Days pass without a write: a look is made from time to time all the same.
        self._unchanged.nothing_left()

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
        location, name = None if feed.moved_by_others else feed.pointer, str(feed.lake_name)
        return CurrentTable(feed, name, work_for(name, remedy=feed.repair()), location)

    def _failed(self, subject: ChangeFeed, _turn: JobTurn, error: MirrorPumpError) -> None:
        with self._shared.use() as connection:
            store_feed_problem(connection, subject, str(error))

    def _store_stats(self, feed: ChangeFeed, stats: Mapping[str, int]) -> None:
        with self._shared.use() as connection:
            store_feed_stats(connection, feed, stats)
