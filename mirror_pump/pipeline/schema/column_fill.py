"""Fills columns that were added with a constant default, by rewriting the data files that lack them.

`ALTER TABLE ... ADD COLUMN ... DEFAULT` with a constant changes no row in Postgres: each older row shows the value that
the command stored in the catalog. In the lake such a row would read as NULL, because its file lacks the column. So from
the publish of the command on, the table is `filling`. Commits build on metadata that readers do not see
(mirror_pump.pipeline.operations.catalog_changes), and tasks rewrite each file that lacks a column, with the value in
every row. Once no such file is left, one publish makes all of it visible.

Invariant: a file lacks the column if and only if its rows were written before the command's position in the stream. A
segment never spans that position. Rows that wait for large values get the new value when they are projected onto the
new columns (mirror_pump.pipeline.stream.batch_planning). Concurrent stream changes are handled as for a merge
(mirror_pump.lake.commit.merged_files): a new file has its source's data sequence number, and newer position deletes are
carried over. Later files have every column, so once no file lacks the column, none will appear.

The rows below the cut-line of a table with heap retention exist only in the lake. They are filled like any others. This
is exact for these reasons:

- Every row below the cut-line from before the command has exactly the default value: the heap has none of these rows,
  so no rewrite of the heap concerns them.
- Corrections get the value in the transaction of the command (modak.complete_corrections), under the lock that keeps
  writers out. Later corrections name every column. So modak.delta always matches what the heap's rows would be.
- Below the cut-line the main branch changes by folds and ingests only, and neither of these nor an advance of the
  cut-line lands in a table that is not live. A fold that was written before the command and lands before its publish
  adds a file that lacks the column and holds older rows: this file is filled. A later fold is refused (may_fold), even
  if the fill is complete by then. An ingest is refused from the command on until the mirror has followed.
- The published snapshot stays unchanged until the fill is complete, and lacks the column in every row. A read across
  the cut-line uses the heap's columns, and gives rows of such a published snapshot the value (Column.initial,
  modak.initial_values). The publish that makes the table live replaces the published snapshot by one of the main
  branch's filled files. Pins of the earlier published snapshot keep it.
- A proof compares the heap, the published snapshot and the corrections in one snapshot, by the columns that the mirror
  has there. No proof begins while the table is being filled. A proof from before the command does not count for a drop:
  the drop notices that the partition was altered.
- If the rows from the cut-line on have to be copied again in the meantime, files are filled after the copy
  (move_frontier): files must not be replaced while the copy adds older ones. For this the columns keep their value
  (`schema.decisions`).

A kill at any step leaves only unused files, because everything that decides is in the catalog. A table with rows below
the cut-line has no copy to fall back on, so filling it is retried until it succeeds.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from psycopg.types.json import Jsonb

from mirror_pump.engine.rewrite.file_merge import MergeTask, merge_files, merge_positions
from mirror_pump.engine.rewrite.merge_plan import NotFillable, merged_file_rewrite, plan_fill
from mirror_pump.errors import LakeError, TableError, TaskFailed
from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.dropped_rows import DroppedRows, parse_dropped
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.format.columns import places_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.initial_defaults import initial_values
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.events import CopyPlanned, FileRewriteReady, TableFailed
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import columns_to_json
from sql import queries

_SQL = queries("upkeep")

_KEEP_LAKE = (
    "Its old rows are in the lake alone, as they were before the column came: unregister the table with --keep-lake"
)

_TRIES = 3
"""Number of consecutive failures after which a table is copied again instead."""


@dataclass(frozen=True)
class FillJob:
    """Replaces data files that lack a column by files that have every column."""

    context: SessionContext
    packing: Callable[[MirroredTable], KeyPacking | None]
    """The packing in which the table's key index, if it has one, needs the keys of the moved rows."""
    name: str = "filler"
    share: float = 1.0
    """The job may use all of its time, because readers wait for it."""
    failed: Step = Step.FILL_FAILED
    idle: float = 0.0
    free: str = "free_to_fill"
    _fields: dict[str, frozenset[int]] = field(default_factory=dict)
    """By URI of a data file, the field IDs of its columns."""
    _without: set[tuple[str, DroppedRows]] = field(default_factory=set)
    """URIs of data files that were written without these rows."""
    _failures: Counter[TableId] = field(default_factory=Counter)
    """Number of consecutive failures, by table."""

    def due(self, lake: LakeTable, left: LakeTable | None, /) -> int | None:
        """The table's priority: the smallest table comes first."""
        # A table that is copied from the cut-line on is filled after the copy, without a commit in between.
        return lake.records if left is not lake and lake.summary.copying else None

    def may_become_due(self, lake: LakeTable, left: LakeTable | None, /) -> bool:
        """Time changes nothing."""
        return self.due(lake, left) is not None

    def compute(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        """Rewrite some of the files. Returns None if no file is left; then the table may go live.

        A table whose files cannot be filled is copied again by the next session. For a table with rows below the
        cut-line, filling is retried until it succeeds. Such a table is failed if filling can never succeed.
        """
        try:
            with work_for(table):
                ready = self._next(table, lake, listing, tasks)
        except (LakeError, TaskFailed, TableError) as error:
            self._failures[table.table_id] += 1
            if table.tier is not None and table.tier.moved:
                if isinstance(error, NotFillable):
                    self.context.inbox.put(TableFailed(table, f"{error}. {_KEEP_LAKE}"))
            elif isinstance(error, NotFillable) or self._failures[table.table_id] >= _TRIES:
                del self._failures[table.table_id]
                self._execute("not_fillable", table)
            if isinstance(error, TableError):
                # What follows is decided here: a copy.
                raise LakeError(str(error), error.remedy) from error
            raise
        del self._failures[table.table_id]
        if ready is None and self._execute("filled", table):
            self.context.inbox.put(CopyPlanned(table, 0))
        return ready

    def _next(
        self, table: MirroredTable, lake: LakeTable, listing: Listing, tasks: FileTasks
    ) -> FileRewriteReady | None:
        """The next rewrite, computed: of files whose rows lack a new column's value, or were dropped with their
        partition. None if there are no such files."""
        began = time.time()
        # What the lake's schema names needs no file.
        initial = initial_values(column for column in table.columns if column.initial is not None)
        needed = frozenset(field.field_id for field in lake.schema.fields) & initial.keys()
        dropped = parse_dropped(table.dropped_rows)
        types = {field.field_id: field.type for field in lake.schema.fields}

        def due(file: LiveFile) -> bool:
            gone = [
                rows.bounds
                for rows in dropped
                if file.sequence_number <= rows.sequence_number
                and rows.bounds.may_concern(file, types[rows.bounds.field_id])
                and (file.path, rows) not in self._without
            ]
            return bool(gone) or bool(needed and not needed <= self._fields_of(file, lake.storage))

        plan = plan_fill(lake, listing, due)
        if plan is None:
            self._fields.clear()
            self._without.clear()
            return None
        self.context.observer(Step.FILLING, table=str(table.name), files=len(plan.data))
        packing = self.packing(table)
        filled = self._filled(
            [replace(task, initial=initial, dropped=dropped, packing=packing) for task in plan.data], tasks
        )
        positions = None
        if plan.positions is not None:
            positions = tasks.result(tasks.begin(merge_positions, plan.positions))
        self._without.update((file.path, rows) for file in filled if file.path is not None for rows in dropped)
        rewrite = replace(merged_file_rewrite(plan, filled, positions), drops_rows=bool(dropped))
        details = {"files": len(filled), "rows": sum(len(file.position) for file in filled)}
        return FileRewriteReady(table, rewrite, Step.FILLED, Step.FILL_REFUSED, details, began)

    def _filled(self, todo: Sequence[MergeTask], tasks: FileTasks) -> list[MergedFile]:
        """Run the tasks. Each rewrites a single file, so that none of them changes its place in the order of
        commits."""
        results: list[MergedFile] = []
        running: deque[Future[MergedFile]] = deque()
        waiting = deque(todo)
        while waiting or running:
            while waiting and len(running) < self.context.settings.copy_workers:
                running.append(tasks.begin(merge_files, waiting.popleft()))
            results.append(tasks.result(running.popleft()))
        return results

    def _fields_of(self, file: LiveFile, storage: StorageOptions) -> frozenset[int]:
        field_ids = self._fields.get(file.path)
        if field_ids is None:
            with open_parquet(file.path, storage) as parquet:
                field_ids = self._fields[file.path] = frozenset(places_by_id(parquet))
        return field_ids

    def _execute(self, statement: str, table: MirroredTable) -> bool:
        """Execute a statement on the table's catalog row. Returns whether it changed the row."""
        with self.context.connect() as connection:
            parameters = {
                "table_id": table.table_id,
                "start_lsn": table.start_lsn,
                "columns": Jsonb(columns_to_json(table.columns)),
                "dropped_rows": Jsonb([json.loads(row) for row in table.dropped_rows]),
            }
            return connection.execute(_SQL[statement], parameters).rowcount == 1
