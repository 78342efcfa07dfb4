"""Copies that replace only the rows that differ: of tables that were paused, and on request after a lost slot.

Such a table is in state `copying` like others, and its stream's changes are applied. But nothing was removed when the
copy began, and one publish replaces what differs (mirror_pump/pipeline/copy/table_difference.py). A table that differs
too much, or whose files cannot be read, is copied as a whole instead: it is marked for that, as by `resync`.
"""

from __future__ import annotations

import time
from contextlib import closing

from mirror_pump.errors import FileMissing, TableError, with_remedy
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import discard
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.partition_life import TAKEN
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.copy.copy_plans import CopyPlans, is_same_copy, planned_chunks
from mirror_pump.pipeline.copy.table_difference import (
    CopyAbandoned,
    CopySources,
    IncomparableRows,
    TableDifference,
)
from mirror_pump.pipeline.flow.events import CopyInvalid, CopyPlanned, PublishWanted, TableFailed, TablesMarked
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import FileTasks, publish_outcome
from mirror_pump.pipeline.operations.replace_differing import ReplaceDiffering
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.resync import mark_tables
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, portable_dsn, source_errors
from mirror_pump.source.heap.block_reader import FilenodeChanged
from mirror_pump.source.stream.leader import check_epoch
from mirror_pump.source.stream.slot import wal_end
from mirror_pump.source.unchanged_server import UnchangedServer
from sql import queries

_SQL = queries("copy")

_LOOK_INTERVAL = 2.0
"""Seconds between checks of the catalog when nothing wakes the thread."""
_NEEDED_INTERVAL = 1.0
"""Seconds for which it is taken for granted that a copy is still needed."""


class DifferenceCopier(ThreadedService):
    """A thread that compares such tables with their heaps, one after another. A comparison that is running when it
    stops is made again."""

    def __init__(self, context: SessionContext, shared: SharedConnection, epoch: int, budget: CopyBudget) -> None:
        """`shared`: for short queries of this thread and others. `epoch`: the epoch of the pump's leadership. `budget`:
        of all copies."""
        self._context = context
        self._shared = shared
        self._connections = SharedConnection(context.connect)
        """Opened when there is something to compare."""
        self._budget = budget
        self._epoch = epoch
        self._plans = CopyPlans(context, epoch)
        self._thread = session_thread("difference copier", self._run, context.inbox)

    def _run(self) -> None:
        unfinished_where = {"slot": self._context.slot, "where_different": True}
        unchanged = UnchangedServer()
        with closing(self._connections):
            while self._thread.next_round():
                if unchanged.skips(self._shared.snapshot(_LOOK_INTERVAL, woken=self._thread.woken)):
                    self._thread.await_wake(_LOOK_INTERVAL)
                    continue
                with self._shared.use() as connection:
                    unfinished = connection.execute(_SQL["unfinished"], unfinished_where).fetchall()
                for table_id, planned in unfinished:
                    if self._thread.stopping():
                        break
                    with self._connections.use() as connection:
                        self._advance(connection, TableId(table_id), planned=planned)
                if not unfinished:
                    self._connections.close()
                    unchanged.nothing_left()
                self._thread.await_wake(_LOOK_INTERVAL)

    def _advance(self, connection: PgConnection, table_id: TableId, *, planned: bool) -> None:
        table = load_table(connection, table_id)
        if table is None:
            return
        try:
            with work_for(table):
                planned = planned or self._plans.plan(connection, table)
        except TableError as error:
            self._context.inbox.put(TableFailed(table, with_remedy(error)))
            return
        if not planned:
            return
        began = time.time()
        inbox = self._context.inbox
        try:
            with work_for(table):
                operation = self._difference(connection, table)
        except FilenodeChanged:
            inbox.put(CopyInvalid(table))
        except TableError as error:
            inbox.put(TableFailed(table, with_remedy(error)))
        except CopyAbandoned:
            return
        except IncomparableRows as reason:
            self._copy_whole(connection, table, str(reason))
        else:
            self._publish(table, operation, began)

    def _difference(self, connection: PgConnection, table: MirroredTable) -> ReplaceDiffering:
        """The operation that completes the copy. Raises as `TableDifference.computed`."""
        location = connection.execute(_SQL["copied_to"], {"table_id": table.table_id}).fetchone()
        chunks = [chunk for _, chunk in planned_chunks(connection, table)]
        if location is None or None in chunks:
            raise FilenodeChanged(f"a heap of {table.name} is gone", "mirror-pump starts the copy again by itself")
        try:
            lake = LakeTable.load(location[0], self._context.storage)
        except FileMissing as error:
            raise IncomparableRows(str(error)) from error
        current = load_table(connection, table.table_id)
        if current is None or not is_same_copy(table, current):
            raise CopyAbandoned
        sources = CopySources(
            # The start sequence number belongs to the copy as it is now.
            current,
            [chunk for chunk in chunks if chunk is not None],
            portable_dsn(self._context.dsn, connection),
            lake,
            self._context.settings.limits.compared_rows,
            self._context.storage,
        )
        tasks = FileTasks(self._context.runner, self._thread.stopping)
        needed = _StillNeeded(connection, table)
        difference = TableDifference(
            sources, tasks, self._budget, self._context.settings.copy_workers, needed.check, self._thread.pause
        )
        return difference.computed()

    def _publish(self, table: MirroredTable, operation: ReplaceDiffering, began: float) -> None:
        counts = {"rows": operation.rows, "copied": operation.copied, "deleted": operation.deleted}
        self._context.observer(Step.ROWS_COMPARED, table=str(table.name), **counts)
        request = PublishWanted(table, operation, began)
        if publish_outcome(self._context, request, self._thread.stopping) is not TAKEN:
            discard(operation.files, self._context.storage)
            return
        self._context.observer(Step.CHUNKS_PUBLISHED)
        # The frontier has to move before the table can go live, and perhaps no change moves it.
        self._context.inbox.put(CopyPlanned(table, 0))

    def _copy_whole(self, connection: PgConnection, table: MirroredTable, reason: str) -> None:
        """Has the table copied again from the beginning, within the resync that it is part of."""
        with source_errors(f"having {table.name} copied"), connection.transaction():
            check_epoch(connection, self._context.slot, self._epoch)
            if not is_same_copy(table, load_table(connection, table.table_id)):
                return
            slot, end = self._context.slot, wal_end(connection)
            mark_tables(connection, slot, [table.table_id], end, gap=False, joins=False)
        self._context.observer(Step.TABLE_COPIED_AGAIN, table=str(table.name), reason=reason)
        self._context.inbox.put(TablesMarked())


class _StillNeeded:
    """Whether a copy is still to be made, looked up now and then."""

    def __init__(self, connection: PgConnection, table: MirroredTable) -> None:
        self._connection = connection
        self._table = table
        self._checked_at = time.monotonic()
        self._needed = True

    def check(self) -> bool:
        """Raises SourceError."""
        if self._needed and time.monotonic() - self._checked_at >= _NEEDED_INTERVAL:
            self._needed = is_same_copy(self._table, load_table(self._connection, self._table.table_id))
            self._checked_at = time.monotonic()
        return self._needed
