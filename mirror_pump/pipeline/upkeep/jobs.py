"""The jobs of upkeep, resolving equality deletes and merging files: when each is due, and what it comes to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from mirror_pump.engine.conversion_plan import file_rewrite_of, plan_conversion
from mirror_pump.engine.delete_conversion import ConversionResult, ConversionTask, convert_deletes
from mirror_pump.engine.file_merge import OWN_POSITIONS, merge_files, merge_positions
from mirror_pump.engine.merge_plan import FANOUT, WORN_SHARE, MergePlan, merged_file_rewrite, plan_merge, plan_rewrite
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.flow.events import FileRewriteReady
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.flow.thread_end import ThreadStopped

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL = 0.25
"""Seconds between looks at the stop request while something is waited for."""


def outcome(future: Future[Result], stopping: Callable[[], bool]) -> Result:
    """What comes of it. Raises what it raised, and Stopped if the pump is to stop before."""
    while not stopping():
        try:
            return future.result(timeout=_POLL)
        except FutureTimeout:
            # The task's own error, or its result, that came just now.
            if future.done():
                return future.result()
    raise ThreadStopped


class Tasks:
    """Runs functions as tasks and waits for them, unless the pump is to stop."""

    def __init__(self, runner: TaskRunner, stopping: Callable[[], bool]) -> None:
        self.runner = runner
        self._stopping = stopping

    def result(self, future: Future[Result]) -> Result:
        """What the task gave. Raises what it raised, and Stopped."""
        return outcome(future, self._stopping)


class RewrittenFiles(Protocol):
    """What a task came to that writes files."""

    @property
    def written(self) -> tuple[WrittenFile, ...]: ...


Written = TypeVar("Written", bound=RewrittenFiles)


class FileTasks(Tasks):
    """The tasks of one computation, whose files are nobody's until it hands them on."""

    def __init__(self, runner: TaskRunner, stopping: Callable[[], bool]) -> None:
        super().__init__(runner, stopping)
        self._begun: list[Future[Any]] = []

    def begin(self, function: Callable[[Task], Written], task: Task) -> Future[Written]:
        """Gives the task to the runner."""
        begun = self.runner.submit(function, task)
        self._begun.append(begun)
        return begun

    def abandon(self, storage: StorageOptions) -> None:
        """Nothing came of it: cancel what has not begun, remove what was written, and what still will be."""
        for begun in self._begun:
            if not begun.cancel():
                begun.add_done_callback(partial(_remove, storage))


def _remove(storage: StorageOptions, begun: Future[RewrittenFiles]) -> None:
    # A task that failed has removed its files by itself.
    if not begun.cancelled() and begun.exception() is None:
        discard([file.path for file in begun.result().written], storage)


class Job(Protocol):
    """Something that is done to tables when it is due, as a resolution that the loop publishes."""

    @property
    def name(self) -> str:
        """Of its thread."""
        ...

    @property
    def share(self) -> float:
        """Of the time, at most so much is spent on it: the next begins after a pause that makes up for the last."""
        ...

    @property
    def failed(self) -> Step:
        """What to report when it could not be done."""
        ...

    @property
    def idle(self) -> float:
        """Seconds until a table is looked at again in which nothing was found to do."""
        ...

    @property
    def free(self) -> str:
        """The query of sql/queries/upkeep.sql that gives a table's metadata if the job may be done to it."""
        ...

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """How urgent it is for a table, the lower the more, among tables that it is due for; None if it is not.
        `left` is the state in which the job last found nothing to do, unless files were exchanged since."""
        ...

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        """Has tasks do the work against the state `lake`; None if there is none. Raises LakeError, TaskFailed, and
        Stopped: whoever called then abandons the tasks."""
        ...


@dataclass(frozen=True)
class ConvertDeletesJob:
    """Position deletes in place of equality deletes."""

    rows: int
    """Pending equality-delete rows from which on a table is due at once."""
    age: float
    """Seconds after which a table with any pending equality delete is due."""
    workers: int
    """Tasks at the same time."""
    observer: Observer
    name: str = "resolver"
    share: float = 0.5
    """A table that takes a minute is resolved every two, whatever its deletes' age."""
    failed: Step = Step.RESOLVE_FAILED
    free: str = "free_to_change"

    @property
    def idle(self) -> float:
        """Nothing to do means that what is pending cannot be resolved."""
        return self.age

    def due(self, lake: LakeTable, _left: LakeTable | None, /) -> int | None:
        """By the age of the oldest delete."""
        since = lake.equality_deletes_since
        if since is None:
            return None
        age_ms = time.time_ns() // 1_000_000 - since
        return since if lake.equality_deletes >= self.rows or age_ms >= self.age * 1000 else None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        began = time.time()
        plan = plan_conversion(lake, listing)
        if plan is None:
            return None
        self.observer(Step.RESOLVING, table=str(table.name), deletes=plan.deletes, tasks=len(plan.tasks))
        results = self._results(plan.tasks, tasks)
        resolution = file_rewrite_of(plan, results)
        self.observer(
            Step.POSITIONS_WRITTEN,
            table=str(table.name),
            deletes=plan.deletes,
            rows_read=sum(result.rows_read for result in results),
            positions=sum(result.file.record_count for result in results if result.file is not None),
        )
        return FileRewriteReady(
            table, resolution, Step.RESOLVED, Step.RESOLVE_REFUSED, {"deletes": plan.deletes}, began
        )

    def _results(self, todo: tuple[ConversionTask, ...], tasks: FileTasks) -> list[ConversionResult]:
        results: list[ConversionResult] = []
        running: deque[Future[ConversionResult]] = deque()
        waiting = deque(todo)
        while waiting or running:
            while waiting and len(running) < self.workers:
                running.append(tasks.begin(convert_deletes, waiting.popleft()))
            results.append(tasks.result(running.popleft()))
        return results


@dataclass(frozen=True)
class MergeJob:
    """One file in place of many small ones, of data files and of position-delete files; one task at a time."""

    target_bytes: int
    """Data files of this size are left alone; 0: all are."""
    packing: Callable[[MirroredTable], KeyPacking | None]
    """How the table's key index, if it has one, wants the keys of the rows that a merge moves."""
    observer: Observer
    name: str = "merger"
    share: float = 0.25
    """It runs all day beside the stream, and must not take from it what it needs at its peaks."""
    failed: Step = Step.MERGE_FAILED
    idle: float = 1.0
    free: str = "free_to_change"

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """By the number of files that have come; at once where more rows are deleted than there are (merge_plan)."""
        if lake.position_deletes > lake.records and (left is None or left.position_deletes != lake.position_deletes):
            return -lake.position_deletes
        new = max(
            _come(lake.data_files, 0 if left is None else left.data_files),
            _come(lake.delete_files, 0 if left is None else left.delete_files),
        )
        return -new if new >= FANOUT else None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        began = time.time()
        plan = self.plan(lake, listing)
        if plan is None:
            return None
        sources = 0 if plan.data is None else len(plan.data.data)
        position_files = len(plan.positions.files) if plan.positions is not None else 0
        name = str(table.name)
        self.observer(Step.MERGING, table=name, data_files=sources, position_files=position_files)
        merged = positions = None
        if plan.data is not None:
            task = replace(plan.data, packing=self.packing(table))
            merged = tasks.result(tasks.begin(merge_files, task))
        if plan.positions is not None:
            positions = tasks.result(tasks.begin(merge_positions, plan.positions))
        resolution = merged_file_rewrite(plan, () if merged is None else (merged,), positions)
        rows = 0 if merged is None else len(merged.position)
        self.observer(Step.MERGE_WRITTEN, table=name, data_files=sources, position_files=position_files, rows=rows)
        details = {"data_files": sources, "position_files": position_files, "bytes": resolution.size_bytes}
        return FileRewriteReady(table, resolution, Step.MERGED, Step.MERGE_REFUSED, details, began)

    def plan(self, lake: LakeTable, listing: Listing) -> MergePlan | None:
        """What there is to do."""
        return plan_merge(lake, listing, self.target_bytes)


@dataclass(frozen=True)
class RewriteJob(MergeJob):
    """Data files without the rows that have died, one file at a time. A job of its own: writing a large file takes
    seconds, and small ones would pile up in the pause that it has to make up for them."""

    name: str = "renewer"
    idle: float = 5.0

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """By the number of dead rows, if that is another than when no file was worn."""
        dead = lake.position_deletes
        many = 0 < min(OWN_POSITIONS, WORN_SHARE * lake.records) <= dead
        new = left is None or left.position_deletes != dead
        return -dead if self.target_bytes and many and new else None

    def plan(self, lake: LakeTable, listing: Listing) -> MergePlan | None:
        """The most worn file."""
        return plan_rewrite(lake, listing)


def _come(files: int, left: int) -> int:
    """Files that are new, at least; all, where some of those that were left are gone."""
    return files - left if files >= left else files
