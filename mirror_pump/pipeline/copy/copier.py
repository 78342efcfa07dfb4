"""Initial copies: plans chunks, keeps tasks reading them, and reports each finished chunk to the inbox.

A chunk is a range of heap blocks. It is read in its own short snapshot at any time after the start LSN, and its file
gets the start sequence number as its data sequence number. This is sufficient: every change after the start LSN is also
in the stream, every stream change of a table under copy deletes its key, and each of these deletes is newer than the
start sequence number. So a copied row survives only if no change came for it. A row that an update moved may be copied
twice or not at all, but the update is in the stream, so the result is correct in both cases. Only a rewrite of the heap
(VACUUM FULL, CLUSTER, TRUNCATE) moves rows without a trace in the stream. It changes the relation's file node, the task
notices this under its lock, and the copy starts again. Tables without a key are copied in one snapshot
(mirror_pump/pipeline/copy/copy_snapshots.py). Copies that replace only the rows that differ are another thread's
(mirror_pump/pipeline/copy/difference_copier.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask, copy_chunk
from mirror_pump.errors import FileMissing, TableError, with_remedy
from mirror_pump.lake.storage import discard
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.copy.copy_plans import CopyPlans, is_same_copy, planned_chunks
from mirror_pump.pipeline.copy.copy_snapshots import CopySnapshot, CopySnapshots
from mirror_pump.pipeline.flow.events import (
    ChunkCopied,
    CopyInvalid,
    LakeFileMissing,
    TableFailed,
    ThreadFailed,
)
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.add_chunks import CopiedChunk
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import is_of_one_table, unexpected, work_for
from mirror_pump.source.catalog.tables import load_each, load_table
from mirror_pump.source.connect import PgConnection, portable_dsn
from mirror_pump.source.heap.block_reader import HeapLeaf
from mirror_pump.source.unchanged_server import UnchangedServer
from sql import queries

_SQL = queries("copy")

_LOOK_INTERVAL = 2.0
"""Seconds between checks of the catalog when nothing wakes the thread. `register` wakes it."""
_PLANNED_TOGETHER = 16
"""Tables whose copies are planned in one transaction. Each waits for a publish to end, and publishes follow one another
while tables are copied. Planning takes milliseconds a table, during which workers may be idle."""


class Copier(ThreadedService):
    """A thread that copies the tables in state `copying`, one after another. Chunks that are running when it stops are
    discarded, and will be read again."""

    def __init__(self, context: SessionContext, shared: SharedConnection, epoch: int, budget: CopyBudget) -> None:
        """`shared`: for short queries of this thread and others. `epoch`: the epoch of the pump's leadership. `budget`:
        of all copies."""
        self._context = context
        self._shared = shared
        self._connections = SharedConnection(context.connect)
        """Opened when there is something to copy."""
        self._snapshots = CopySnapshots(context)
        self._inbox = context.inbox
        self._slots = threading.Semaphore(context.settings.copy_workers)
        self._budget = budget
        self._reported: set[tuple[TableId, int, int, int]] = set()
        """Chunks given to a task in this session, as (table, start LSN, generation, number). They are not submitted
        again, whether they are published or not."""
        self._running = set[Future[ChunkResult]]()
        """The tasks that copy chunks now."""
        self._looking = False
        """Whether the thread goes through unfinished tables: as a rule it waits for a task to end before it submits the
        next."""
        self._locked: set[int] = set()
        """OIDs of the heaps that a task could not lock since the last look at the catalog."""
        self._raw_text_columns: dict[tuple[TableId, int], frozenset[int]] = {}
        """By table and start LSN, the field IDs of the columns that needed a raw text column in a chunk so far."""
        self._plans = CopyPlans(context, epoch)
        self._thread = session_thread("copier", self._run, context.inbox, interrupt=self._slots.release)

    def _run(self) -> None:
        unfinished_where = {"slot": self._context.slot, "where_different": False}
        unchanged = UnchangedServer()
        with closing(self._connections), closing(self._snapshots):
            while self._thread.next_round():
                if unchanged.skips(self._shared.snapshot(_LOOK_INTERVAL, woken=self._thread.woken)):
                    self._thread.await_wake(_LOOK_INTERVAL)
                    continue
                self._locked.clear()
                with self._shared.use() as connection:
                    unfinished = connection.execute(_SQL["unfinished"], unfinished_where).fetchall()
                self._snapshots.keep_only([TableId(table_id) for table_id, _ in unfinished])
                self._looking = True
                for begin in range(0, len(unfinished), _PLANNED_TOGETHER):
                    if self._thread.stopping():
                        break
                    with self._connections.use() as connection:
                        self._advance(connection, unfinished[begin : begin + _PLANNED_TOGETHER])
                self._looking = False
                if not unfinished:
                    self._connections.close()
                    unchanged.nothing_left()
                self._thread.await_wake(_LOOK_INTERVAL)

    def _advance(self, connection: PgConnection, unfinished: Sequence[tuple[int, bool]]) -> None:
        """Plan the copies of these tables, unless they are planned, and give their chunks to tasks."""
        loaded = load_each(connection, [TableId(table_id) for table_id, _ in unfinished])
        tables = [(loaded[TableId(table_id)], planned) for table_id, planned in unfinished if table_id in loaded]
        fresh = self._planned(connection, [table for table, planned in tables if not (planned or table.keyless)])
        for table, planned in tables:
            if self._thread.stopping():
                return
            with self._work_for(table):
                if table.keyless:
                    self._advance_keyless(connection, table, planned=planned)
                elif planned or table.table_id in fresh:
                    self._copy(connection, table, None)

    def _planned(self, connection: PgConnection, tables: Sequence[MirroredTable]) -> set[TableId]:
        """As CopyPlans.plan_together. A table that cannot be planned fails."""
        try:
            return self._plans.plan_together(connection, tables)
        except Exception as error:
            if not is_of_one_table(error):
                raise
        # It does not say of which table it is.
        fresh: set[TableId] = set()
        for table in tables:
            with self._work_for(table):
                fresh |= self._plans.plan_together(connection, [table])
        return fresh

    @contextmanager
    def _work_for(self, table: MirroredTable) -> Iterator[None]:
        """Has the table fail if its copy cannot go on."""
        try:
            with work_for(table):
                yield
        except TableError as error:
            self._inbox.put(TableFailed(table, with_remedy(error)))

    def _advance_keyless(self, connection: PgConnection, table: MirroredTable, *, planned: bool) -> None:
        """As `_advance`, for a table that is read in one snapshot."""
        snapshot = self._snapshots.snapshot_of(table)
        if snapshot is not None and (
            planned
            or self._plans.plan(
                connection, table, awaits_writers=False, fits=lambda leaves: self._fits(table, snapshot, leaves)
            )
        ):
            self._copy(connection, table, snapshot)

    def _fits(self, table: MirroredTable, snapshot: CopySnapshot, leaves: Sequence[HeapLeaf]) -> bool:
        """Whether the table can be read in the snapshot. If not, the snapshot is released."""
        if {leaf.filenode for leaf in leaves} == snapshot.filenodes:
            return True
        self._snapshots.release(table.table_id)
        return False

    def _copy(self, connection: PgConnection, table: MirroredTable, snapshot: CopySnapshot | None) -> None:
        dsn = portable_dsn(self._context.dsn, connection)
        for number, chunk in planned_chunks(connection, table):
            identity = (table.table_id, table.start_lsn, table.generation, number)
            if identity in self._reported:
                continue
            if chunk is None:
                self._inbox.put(CopyInvalid(table))
                return
            with ExitStack() as unless_submitted:
                self._slots.acquire()
                unless_submitted.callback(self._slots.release)
                if not self._await_budget() or not is_same_copy(table, load_table(connection, table.table_id)):
                    return
                if chunk.relation_id in self._locked:
                    # Read this heap later: chunks that can be read now must not wait for its lock.
                    continue
                raw_text_columns = self._raw_text_columns.get((table.table_id, table.start_lsn), frozenset())
                name = None if snapshot is None else snapshot.name
                task = ChunkTask(dsn, table, chunk, self._context.storage, name, raw_text_columns=raw_text_columns)
                self._reported.add(identity)
                future = self._context.runner.submit(copy_chunk, task)
                unless_submitted.pop_all()
            self._running.add(future)
            future.add_done_callback(partial(self._finished, table, number, chunk.relation_id))

    def _await_budget(self) -> bool:
        """Wait until the next chunk may be read. Returns False if the thread is to stop."""
        while (seconds := self._budget.wait_seconds()) > 0:
            if self._thread.pause(seconds):
                break
        return not self._thread.stopping()

    def _finished(self, table: MirroredTable, number: int, relation_id: int, future: Future[ChunkResult]) -> None:
        """Called when a task ends. An error here would be lost with its chunk, which no session submits twice."""
        try:
            with self._work_for(table):
                self._take(table, number, relation_id, future)
        except BaseException as error:  # noqa: BLE001 - a future only logs what its callbacks raise
            self._inbox.put(ThreadFailed(error))

    def _take(self, table: MirroredTable, number: int, relation_id: int, future: Future[ChunkResult]) -> None:
        self._running.discard(future)
        if not future.cancelled() and future.exception() is None and future.result().locked:
            # Record this before another chunk takes the worker.
            self._locked.add(relation_id)
            self._reported.discard((table.table_id, table.start_lsn, table.generation, number))
        if not future.cancelled() and future.exception() is None:
            # Pay before another chunk takes the worker.
            self._budget.spend(future.result().bytes_read)
        self._slots.release()
        if future.cancelled():
            return
        error = future.exception()
        if self._thread.stopping():
            files = () if error is not None else future.result().files
            discard([file.path for file in files], self._context.storage)
            return
        if isinstance(error, FileMissing):
            self._inbox.put(LakeFileMissing(table.table_id, error.location, copying=True))
            return
        if error is not None and is_of_one_table(error):
            self._inbox.put(TableFailed(table, with_remedy(unexpected(table, error))))
            return
        if error is not None:
            self._inbox.put(ThreadFailed(error))
            return
        result = future.result()
        if result.locked:
            return
        if result.error is not None:
            self._inbox.put(TableFailed(table, result.error))
        elif result.heap_rewritten:
            self._inbox.put(CopyInvalid(table))
        else:
            identity = table.table_id, table.start_lsn
            self._raw_text_columns[identity] = (
                self._raw_text_columns.get(identity, frozenset()) | result.raw_text_columns
            )
            self._context.observer(Step.CHUNK_COPIED, table=str(table.name), chunk=number, rows=result.rows)
            copied = CopiedChunk(table.generation, number, result.rows, result.files, result.raw_text_columns)
            self._inbox.put(ChunkCopied(table, copied, others_follow=self._looking or bool(self._running)))
