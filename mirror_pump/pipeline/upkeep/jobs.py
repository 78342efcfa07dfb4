"""The upkeep jobs, which convert equality deletes and merge files: when each is due, and how it is computed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from mirror_pump.engine.rewrite.conversion_plan import file_rewrite_of, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import ConversionTask, FoundRows, convert_deletes
from mirror_pump.engine.rewrite.file_merge import merge_files, merge_positions
from mirror_pump.engine.rewrite.merge_plan import (
    FANOUT,
    MUCH_DELETED_SHARE,
    MergePlan,
    merged_file_rewrite,
    plan_merge,
    plan_rewrite,
)
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.deletes.delete_form import OWN_POSITIONS
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.flow.events import FileRewriteReady
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.flow.tasks import FileTasks

Subject = TypeVar("Subject")
"""What a job works on, as the catalog has it: a mirrored table or a change feed."""
Subject_contra = TypeVar("Subject_contra", contravariant=True)


class Job(Protocol[Subject_contra]):
    """Work that is done to tables when it is due. The loop publishes it as a file rewrite."""

    @property
    def name(self) -> str:
        """The name of the job's thread."""

    @property
    def share(self) -> float:
        """Largest share of time to spend on the job. A pause after each run keeps the job within it."""

    @property
    def failed(self) -> Step:
        """The step to report when the job failed."""

    @property
    def idle(self) -> float:
        """Seconds until a table is looked at again after nothing was found to do."""

    @property
    def free(self) -> str:
        """The query of sql/queries/upkeep.sql that returns a mirrored table's metadata if the job may run on it."""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """Returns how urgent the job is for a table, lower meaning more urgent, or None if it is not due. `left` is the
        state in which the job last found nothing to do, unless files were replaced since."""

    def may_become_due(self, lake: LakeTable, left: LakeTable | None, /) -> bool:
        """Whether the job is due for a table in this state, now or later. A table for which it is not is not looked at
        before its state changes."""

    def compute(
        self, table: Subject_contra, lake: LakeTable, listing: Listing, tasks: FileTasks, /
    ) -> FileRewriteReady | None:
        """Computes the job against the state `lake`, in tasks. Returns None if there is nothing to do. Raises
        LakeError, TaskFailed and ThreadStopped; the caller then abandons the tasks."""


@dataclass(frozen=True)
class ConvertDeletesJob:
    """Converts equality deletes to position deletes."""

    rows: int
    """Number of pending equality-delete rows at which a table is due at once."""
    age: float
    """Seconds after which a table with any pending equality delete is due."""
    workers: int
    """Number of concurrent tasks."""
    observer: Observer
    name: str = "converter"
    share: float = 0.5
    """A table that takes a minute is converted every two minutes, whatever the age of its deletes."""
    failed: Step = Step.CONVERSION_FAILED
    free: str = "free_to_change"

    @property
    def idle(self) -> float:
        """Nothing to do means that the pending deletes cannot be converted."""
        return self.age

    def due(self, lake: LakeTable, _left: LakeTable | None, /) -> int | None:
        """Ranks tables by the age of their oldest delete."""
        since = lake.equality_deletes_since
        if since is None:
            return None
        age_ms = time.time_ns() // 1_000_000 - since
        # A delete from the future is of unknown age: the clock was set back.
        due = lake.equality_deletes >= self.rows or not 0 <= age_ms < self.age * 1000
        return since if due else None

    def may_become_due(self, lake: LakeTable, _left: LakeTable | None, /) -> bool:
        """Deletes become due with age."""
        return lake.equality_deletes_since is not None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        began = time.time()
        plan = plan_conversion(lake, listing)
        if plan is None:
            return None
        self.observer(Step.CONVERTING, table=str(table.name), deletes=plan.deletes, tasks=len(plan.tasks))
        results = self._results(plan.tasks, tasks)
        rewrite = file_rewrite_of(plan, results)
        self.observer(
            Step.POSITIONS_WRITTEN,
            table=str(table.name),
            deletes=plan.deletes,
            rows_read=sum(result.rows_read for result in results),
            positions=rewrite.hidden.rows,
        )
        return FileRewriteReady(
            table, rewrite, Step.CONVERTED, Step.CONVERSION_REFUSED, {"deletes": plan.deletes}, began
        )

    def _results(self, todo: tuple[ConversionTask, ...], tasks: FileTasks) -> list[FoundRows]:
        results: list[FoundRows] = []
        running: deque[Future[FoundRows]] = deque()
        waiting = deque(todo)
        while waiting or running:
            while waiting and len(running) < self.workers:
                running.append(tasks.begin(convert_deletes, waiting.popleft()))
            results.append(tasks.result(running.popleft()))
        return results


@dataclass(frozen=True)
class MergeJob:
    """Merges many small files into one, both data files and position-delete files; of a partitioned table, into one of
    each lake partition. Runs one task at a time."""

    target_bytes: int
    """Size in bytes from which data files are left alone. 0 leaves all data files alone."""
    packing: Callable[[MirroredTable], KeyPacking | None]
    """Returns how the table's key index, if it has one, needs the keys of the rows that a merge moves."""
    observer: Observer
    name: str = "merger"
    share: float = 0.25
    """The job runs all day while the stream goes on, and must not take the resources that the stream needs at its
    peaks."""
    failed: Step = Step.MERGE_FAILED
    idle: float = 1.0
    free: str = "free_to_change"

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """Ranks tables by the number of new files. A table is due at once if more rows are deleted than there are
        (merge_plan). Where a commit merges deletes itself, only those count that the table has from before it got that
        form: when it is looked at first."""
        if lake.position_deletes > lake.records and (left is None or left.position_deletes != lake.position_deletes):
            return -lake.position_deletes
        new = new_files(lake.data_files, 0 if left is None else left.data_files)
        if lake.deletes.adds_files:
            new = max(new, new_files(lake.delete_files, 0 if left is None else left.delete_files))
        elif lake.position_deletes and (left is None or left.deletes is not lake.deletes):
            return -max(new, 1)
        return -new if new >= FANOUT else None

    def may_become_due(self, lake: LakeTable, left: LakeTable | None, /) -> bool:
        """Time changes nothing."""
        return self.due(lake, left) is not None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        began = time.time()
        plan = self.plan(lake, listing)
        if plan is None:
            return None
        sources = sum(len(task.data) for task in plan.data)
        position_files = len(plan.positions.files) if plan.positions is not None else 0
        name = str(table.name)
        self.observer(Step.MERGING, table=name, data_files=sources, position_files=position_files)
        positions = None
        packing = self.packing(table)
        merged = [tasks.result(tasks.begin(merge_files, replace(task, packing=packing))) for task in plan.data]
        if plan.positions is not None:
            positions = tasks.result(tasks.begin(merge_positions, plan.positions))
        rewrite = merged_file_rewrite(plan, merged, positions)
        rows = sum(len(file.position) for file in merged)
        self.observer(Step.MERGE_WRITTEN, table=name, data_files=sources, position_files=position_files, rows=rows)
        details = {"data_files": sources, "position_files": position_files, "bytes": rewrite.size_bytes}
        return FileRewriteReady(table, rewrite, Step.MERGED, Step.MERGE_REFUSED, details, began)

    def plan(self, lake: LakeTable, listing: Listing) -> MergePlan | None:
        """Returns the planned work, or None if there is none."""
        return plan_merge(lake, listing, self.target_bytes)


@dataclass(frozen=True)
class RewriteJob(MergeJob):
    """Rewrites data files without their deleted rows, one file at a time. It is a job of its own because writing a
    large file takes seconds, and small files would pile up in the pause that follows."""

    name: str = "rewriter"
    idle: float = 5.0

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """Ranks tables by their number of deleted rows, if that changed since no file needed a rewrite."""
        deleted = lake.position_deletes
        many = 0 < min(OWN_POSITIONS, MUCH_DELETED_SHARE * lake.records) <= deleted
        new = left is None or left.position_deletes != deleted
        return -deleted if self.target_bytes and many and new else None

    def plan(self, lake: LakeTable, listing: Listing) -> MergePlan | None:
        """Plans the rewrite of the file with the most deleted rows."""
        return plan_rewrite(lake, listing)


def new_files(files: int, left: int) -> int:
    """Returns the minimum number of new files among `files`, if there were `left` before. All files count as new if
    some of the former ones are gone."""
    return files - left if files >= left else files
