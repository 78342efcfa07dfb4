"""Initial copies: plans chunks, keeps tasks reading them, and reports each finished chunk to the inbox.

A chunk is a range of heap blocks. It is read in its own short snapshot at any time after the start LSN, and its file
gets the start sequence number as its data sequence number. This is sufficient: every change after the start LSN is also
in the stream, every stream change of a table under copy deletes its key, and each of these deletes is newer than the
start sequence number. So a copied row survives only if no change came for it. A row that an update moved may be copied
twice or not at all, but the update is in the stream, so the result is correct in both cases. Only a rewrite of the heap
(VACUUM FULL, CLUSTER, TRUNCATE) moves rows without a trace in the stream. It changes the relation's file node, the task
notices this under its lock, and the copy starts again. Tables without a key are copied in one snapshot
(mirror_pump/pipeline/copy/copy_snapshots.py).
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import psycopg

from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask, copy_chunk
from mirror_pump.errors import FileMissing, SourceError
from mirror_pump.lake.storage import discard
from mirror_pump.model import MirroredTable, TableId, TableState
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.copy.copy_snapshots import CopySnapshot, CopySnapshots
from mirror_pump.pipeline.flow.events import (
    ChunkCopied,
    CopyFailed,
    CopyInvalid,
    CopyPlanned,
    LakeFileMissing,
    ThreadFailed,
)
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.add_chunks import CopiedChunk
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, limited, portable_dsn
from mirror_pump.source.heap.block_reader import Chunk, balanced_bytes, chunks_of, read_leaves
from mirror_pump.source.relations.change_notes import same_layout
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import check_epoch
from sql import queries

_SQL = queries("copy")
_SHAPE_SQL = queries("shape")

_LOOK_INTERVAL = 2.0
"""Seconds between checks of the catalog when nothing wakes the thread. `register` wakes it."""


@dataclass(frozen=True)
class _ChunkRow:
    """A row of the query `chunks`; see Chunk."""

    chunk_no: int
    relation_id: int
    schema_name: str | None
    relation_name: str | None
    """None, like `schema_name`, for a heap that is gone."""
    filenode: int
    lo_block: int
    hi_block: int | None


class Copier(ThreadedService):
    """A thread that copies the tables in state `copying`, one after another. Chunks that are running when it stops are
    discarded, and will be read again."""

    def __init__(self, context: SessionContext, shared: SharedConnection, epoch: int) -> None:
        """`shared`: for short queries of this thread and others. `epoch`: the epoch of the pump's leadership."""
        self._context = context
        self._shared = shared
        self._own = SharedConnection(context.connect)
        """Opened when there is something to copy."""
        self._snapshots = CopySnapshots(context)
        self._epoch = epoch
        self._inbox = context.inbox
        self._slots = threading.Semaphore(context.settings.copy_workers)
        self._budget = CopyBudget(context.settings.copy_rate_bytes)
        self._reported: set[tuple[TableId, int, int, int]] = set()
        """Chunks given to a task in this session, as (table, start LSN, generation, number). They are not submitted
        again, whether they are published or not."""
        self._locked: set[int] = set()
        """OIDs of the heaps that a task could not lock since the last look at the catalog."""
        self._raw_text_columns: dict[tuple[TableId, int], frozenset[int]] = {}
        """By table and start LSN, the field IDs of the columns that needed a raw text column in a chunk so far."""
        self._awaited: dict[tuple[TableId, int], set[str]] = {}
        """By table and start LSN, the transactions that have to end before the copy is planned."""
        self._thread = session_thread("copier", self._run, context.inbox, interrupt=self._slots.release)

    def _run(self) -> None:
        with closing(self._own), closing(self._snapshots):
            while self._thread.next_round():
                self._locked.clear()
                with self._shared.use() as connection:
                    unfinished = connection.execute(_SQL["unfinished"], {"slot": self._context.slot}).fetchall()
                self._snapshots.keep_only([TableId(table_id) for table_id, _ in unfinished])
                for table_id, planned in unfinished:
                    if self._thread.stopping():
                        break
                    with self._own.use() as connection:
                        table = load_table(connection, TableId(table_id))
                        if table is not None:
                            self._advance(connection, table, planned=planned)
                self._thread.await_wake(_LOOK_INTERVAL)

    def _advance(self, connection: PgConnection, table: MirroredTable, *, planned: bool) -> None:
        """Plan the table's copy, unless it is planned, and give its chunks to tasks."""
        snapshot = None
        if table.keyless:
            snapshot = self._snapshots.snapshot_of(table)
            if snapshot is None:
                return
        if planned or self._plan(connection, table, snapshot):
            self._copy(connection, table, snapshot)

    def _plan(self, connection: PgConnection, table: MirroredTable, snapshot: CopySnapshot | None) -> bool:
        """Divide the table's current heap into chunks. Rows in blocks that are added later come in the stream.

        Planning waits until every transaction that may have ended below the start LSN is visible. A registration has
        waited for their end itself. A table that is copied again has its start LSN from the stream, which is ahead of
        visibility, so planning waits for the transactions that hold locks. It also waits while the heap's columns or
        partitions differ from those at the stream's position.
        """
        if not self._settled(connection, table, awaits_writers=snapshot is None):
            return False
        try:
            with limited(connection):
                leaves = read_leaves(connection, table.table_id)
        except SourceError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                return False
            raise
        if snapshot is not None and [leaf.filenode for leaf in leaves] != [snapshot.filenode]:
            self._snapshots.release(table.table_id)
            return False
        settings = self._context.settings
        into_partitions = table.partitioning is not None and bool(table.partitioning.fields)
        chunk_bytes = balanced_bytes(
            leaves, settings.copy_chunk_bytes, settings.copy_workers, into_partitions=into_partitions
        )
        chunks = chunks_of(leaves, chunk_bytes)
        if table.lacks_rows:
            chunks = ()
        with connection.transaction():
            check_epoch(connection, self._context.slot, self._epoch)
            who = {"table_id": table.table_id, "start_lsn": table.start_lsn, "generation": table.generation}
            if connection.execute(_SQL["plan"], who).rowcount != 1:
                return False
            with connection.cursor() as cursor:
                cursor.executemany(
                    _SQL["plan_chunk"],
                    [
                        {
                            "table_id": table.table_id,
                            "generation": table.generation,
                            "chunk_no": number,
                            "relation_id": chunk.relation_id,
                            "filenode": chunk.filenode,
                            "lo_block": chunk.lo_block,
                            "hi_block": chunk.hi_block,
                        }
                        for number, chunk in enumerate(chunks)
                    ],
                )
            if not chunks:
                connection.execute(_SQL["nothing_to_copy"], {"table_id": table.table_id})
        self._context.observer(Step.COPY_PLANNED, table=str(table.name), chunks=len(chunks))
        self._inbox.put(CopyPlanned(table, len(chunks)))
        return bool(chunks)

    def _settled(self, connection: PgConnection, table: MirroredTable, *, awaits_writers: bool) -> bool:
        """Whether the table's copy can be planned now. If False, the thread checks again later."""
        who: dict[str, object] = {"table_id": table.table_id}
        identity = (table.table_id, table.start_lsn)
        holders = {holder for (holder,) in connection.execute(_SHAPE_SQL["lockers"], who)}
        if table.generation and awaits_writers:
            self._awaited[identity] = self._awaited.get(identity, holders) & holders
            if self._awaited[identity]:
                return False
        row = connection.execute(_SHAPE_SQL["present"], who).fetchone()
        return not table.shape or (row is not None and same_layout(json.loads(table.shape), row[0]))

    def _copy(self, connection: PgConnection, table: MirroredTable, snapshot: CopySnapshot | None) -> None:
        parameters = {"table_id": table.table_id, "generation": table.generation}
        dsn = portable_dsn(self._context.dsn, connection)
        for row in fetch_rows(connection, _ChunkRow, _SQL["chunks"], parameters):
            identity = (table.table_id, table.start_lsn, table.generation, row.chunk_no)
            if identity in self._reported:
                continue
            if row.schema_name is None or row.relation_name is None:
                self._inbox.put(CopyInvalid(table))
                return
            self._slots.acquire()
            if not self._await_budget() or not _same_copy(table, load_table(connection, table.table_id)):
                self._slots.release()
                return
            if row.relation_id in self._locked:
                # Read this heap later: chunks that can be read now must not wait for its lock.
                self._slots.release()
                continue
            self._reported.add(identity)
            chunk = Chunk(row.relation_id, row.schema_name, row.relation_name, row.filenode, row.lo_block, row.hi_block)
            raw_text_columns = self._raw_text_columns.get((table.table_id, table.start_lsn), frozenset())
            name = None if snapshot is None else snapshot.name
            task = ChunkTask(dsn, table, chunk, self._context.storage, name, raw_text_columns=raw_text_columns)
            future = self._context.runner.submit(copy_chunk, task)
            future.add_done_callback(partial(self._finished, table, row.chunk_no, row.relation_id))

    def _await_budget(self) -> bool:
        """Wait until the next chunk may be read. Returns False if the thread is to stop."""
        while (seconds := self._budget.wait_seconds()) > 0:
            if self._thread.pause(seconds):
                break
        return not self._thread.stopping()

    def _finished(self, table: MirroredTable, number: int, relation_id: int, future: Future[ChunkResult]) -> None:
        """Called when a task ends. An error here would be lost with its chunk, which no session submits twice."""
        try:
            self._take(table, number, relation_id, future)
        except BaseException as error:  # noqa: BLE001 - a future only logs what its callbacks raise
            self._inbox.put(ThreadFailed(error))

    def _take(self, table: MirroredTable, number: int, relation_id: int, future: Future[ChunkResult]) -> None:
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
        if error is not None:
            self._inbox.put(ThreadFailed(error))
            return
        result = future.result()
        if result.locked:
            return
        if result.error is not None:
            self._inbox.put(CopyFailed(table, result.error))
        elif result.heap_rewritten:
            self._inbox.put(CopyInvalid(table))
        else:
            identity = table.table_id, table.start_lsn
            self._raw_text_columns[identity] = (
                self._raw_text_columns.get(identity, frozenset()) | result.raw_text_columns
            )
            self._context.observer(Step.CHUNK_COPIED, table=str(table.name), chunk=number, rows=result.rows)
            copied = CopiedChunk(table.generation, number, result.rows, result.files, result.raw_text_columns)
            self._inbox.put(ChunkCopied(table, copied))


def _same_copy(table: MirroredTable, current_table: MirroredTable | None) -> bool:
    """Whether this copy of the table is still wanted: the table did not fail, was not registered again, and its copy
    was not restarted."""
    return (
        current_table is not None
        and current_table.state is TableState.COPYING
        and (current_table.start_lsn, current_table.generation) == (table.start_lsn, table.generation)
    )
