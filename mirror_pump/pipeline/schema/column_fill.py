"""Gives rows from before a column was added the value that they have in it, by writing their files anew.

`ALTER TABLE ... ADD COLUMN ... DEFAULT` with a constant changes no row in Postgres: each row from before shows the
value that the command left in the catalog. In the lake such a row would read as NULL, since its file lacks the column.
So from the publish of the command on, the table is `filling`: what is committed builds on metadata that readers do not
see (mirror_pump.pipeline.operations.catalog_changes), and tasks write each file that lacks a column again, with the
value in every row.
Once no such file is left, one publish shows the whole.

Invariant: a file lacks the column if and only if its rows were written before the command's place in the stream; a
segment never spans that place, and rows that wait for large values get the value when they are put under the new
columns (mirror_pump.pipeline.stream.schema_projection). What the stream changes meanwhile counts as it does for a merge
(mirror_pump.lake.commit.merged_files): a new file has its source's data sequence number, and position deletes that came
since are carried over. Files that come later have every column, so no further one that lacks it appears once none is
left.

Rows below the cut-line of a table with heap retention are in the lake alone, and filled like any others. Why that is
exact:

- Every row below the cut-line that was there before the command has the value, and nothing else: the heap has none of
them, so no
  rewrite of the heap concerns them.
- Corrections get the value in the transaction of the command (modak.complete_corrections), under the lock that keeps
  writers out; later ones name every column. So at each moment modak.delta is as rows of the heap would be.
- Below the cut-line main changes by folds only, and neither a fold nor an advance of the cut-line lands in a table
that is not live. A fold
  that was written before the command, and lands before its publish, brings a file that lacks the column, of rows from
  before: it is filled. One that comes later is refused (may_fold), also when the fill is complete by then.
- the published snapshot stays as it is until the fill is complete, and lacks the column in every row. A read across
the seam goes by the
  heap's columns, and gives rows of such a published snapshot the value (Column.initial, modak.initial_values). The
  publish that makes the table live makes the published snapshot anew, of main's filled files. Pins of the former
  published snapshot keep that one.
- A proof compares heap, the published snapshot and delta in one snapshot, by the columns that the mirror has there,
and none begins while
  the table is filled. One from before the command does not count for a drop: that sees that the partition was altered.
- Where rows from the cut-line on have to be copied again meanwhile, files are filled behind the copy (fill_next): they
must not be
  exchanged while older ones come in beside them. For that the columns keep their value (pipeline.evolution).

A kill at any step leaves nothing but files: all that decides is in the catalog. Such a table has no copy to fall back
on, so that filling it is tried until it succeeds.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.types.json import Jsonb

from mirror_pump.engine.file_merge import MergeTask, merge_files, merge_positions
from mirror_pump.engine.merge_plan import NotFillable, merged_file_rewrite, plan_fill
from mirror_pump.errors import LakeError, TaskFailed
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.dropped_rows import DroppedRows, parse_dropped
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.format.columns import places_by_id
from mirror_pump.lake.format.initial_defaults import initial_values
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions, open_input
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.events import CopyFailed, CopyPlanned, FileRewriteReady
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.publish.staging import COPYING_PROPERTY
from mirror_pump.pipeline.upkeep.jobs import FileTasks
from mirror_pump.source.catalog.tables import columns_to_json
from sql import queries

_SQL = queries("upkeep")

_KEEP_LAKE = (
    "Its old rows are in the lake alone, as they were before the column came: unregister the table with --keep-lake"
)

_TRIES = 3
"""Failures, one after the other, after which a table is copied again instead."""


@dataclass(frozen=True)
class FillJob:
    """Data files with every column, in place of those that lack one."""

    context: SessionContext
    packing: Callable[[MirroredTable], KeyPacking | None]
    """How the table's key index, if it has one, wants the keys of the rows that move."""
    name: str = "filler"
    share: float = 1.0
    """Readers are waiting for it."""
    failed: Step = Step.FILL_FAILED
    idle: float = 0.0
    free: str = "free_to_fill"
    _fields: dict[str, frozenset[int]] = field(default_factory=dict)
    """By URI of a data file, the field IDs of its columns."""
    _without: set[tuple[str, DroppedRows]] = field(default_factory=set)
    """URIs of data files that were written without these rows."""
    _failures: Counter[TableId] = field(default_factory=Counter)
    """One after the other, by table."""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """The smallest table first."""
        # One that is copied from the cut-line on is filled behind the copy, without a commit in between.
        return lake.records if left is not lake and lake.summary.get(COPYING_PROPERTY) == "true" else None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        """Some of the files; None, and the table may go live, if none is left. A table whose files cannot be filled is
        copied again by the next session; one with rows below the cut-line is filled until that succeeds, or set aside
        where it never can."""
        try:
            exchange = self._next(table, lake, listing, tasks)
        except (LakeError, TaskFailed) as error:
            self._failures[table.table_id] += 1
            if table.tier is not None and table.tier.moved:
                if isinstance(error, NotFillable):
                    self.context.inbox.put(CopyFailed(table, f"{error}. {_KEEP_LAKE}"))
            elif isinstance(error, NotFillable) or self._failures[table.table_id] >= _TRIES:
                del self._failures[table.table_id]
                self._execute("not_fillable", table)
            raise
        del self._failures[table.table_id]
        if exchange is None and self._execute("filled", table):
            self.context.inbox.put(CopyPlanned(table, 0))
        return exchange

    def _next(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        began = time.time()
        initial = initial_values(table.columns)
        needed = frozenset(field.field_id for field in lake.schema.fields) & initial.keys()
        dropped = parse_dropped(table.dropped_rows)
        kinds = {field.field_id: field.type.kind for field in lake.schema.fields}

        def due(file: LiveFile) -> bool:
            gone = [
                rows.bounds
                for rows in dropped
                if file.sequence_number <= rows.sequence_number
                and rows.bounds.may_concern(file, kinds[rows.bounds.field_id])
                and (file.path, rows) not in self._without
            ]
            return bool(gone) or bool(needed and not needed <= self._fields_of(file, lake.storage))

        plan = plan_fill(lake, listing, due)
        if plan is None:
            self._fields.clear()
            self._without.clear()
            return None
        assert plan.data is not None
        self.context.observer(Step.FILLING, table=str(table.name), files=len(plan.data.data))
        task = replace(plan.data, initial=initial, dropped=dropped, packing=self.packing(table))
        filled = self._filled(task, tasks)
        positions = None
        if plan.positions is not None:
            positions = tasks.result(tasks.begin(merge_positions, plan.positions))
        self._without.update((file.path, each) for file in filled if file.path is not None for each in dropped)
        resolution = replace(merged_file_rewrite(plan, filled, positions), drops_rows=bool(dropped))
        details = {"files": len(filled), "rows": sum(len(file.position) for file in filled)}
        return FileRewriteReady(table, resolution, Step.FILLED, Step.FILL_REFUSED, details, began)

    def _filled(self, task: MergeTask, tasks: FileTasks) -> list[MergedFile]:
        """Each file by itself, so that none of them changes its place in the order of commits."""
        results: list[MergedFile] = []
        running: deque[Future[MergedFile]] = deque()
        waiting = deque(task.data)
        while waiting or running:
            while waiting and len(running) < self.context.settings.copy_workers:
                running.append(tasks.begin(merge_files, replace(task, data=(waiting.popleft(),))))
            results.append(tasks.result(running.popleft()))
        return results

    def _fields_of(self, file: LiveFile, storage: StorageOptions) -> frozenset[int]:
        known = self._fields.get(file.path)
        if known is None:
            try:
                with open_input(file.path, storage) as source, pq.ParquetFile(source) as parquet:
                    known = self._fields[file.path] = frozenset(places_by_id(parquet))
            except (pa.ArrowException, OSError) as error:
                raise LakeError(f"{file.path} cannot be read: {error}", "it is tried again") from error
        return known

    def _execute(self, statement: str, table: MirroredTable) -> bool:
        """Whether it changed the table's row."""
        with self.context.connect() as connection:
            parameters = {
                "table_id": table.table_id,
                "start_lsn": table.start_lsn,
                "columns": Jsonb(columns_to_json(table.columns)),
                "dropped_rows": Jsonb([json.loads(row) for row in table.dropped_rows]),
            }
            return connection.execute(_SQL[statement], parameters).rowcount == 1
