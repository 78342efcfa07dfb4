"""Copies sealed partitions of tiered tables into files, in chunks that are recorded in the catalog.

Nothing of the files is in the lake before the publish in which the cut-line passes the partition. A chunk that is
recorded is not copied again after a kill. The chunks of a capture that has ended are worthless: the partition was
truncated, or unsealed, so changes since they were read may not be captured
(mirror_pump.source.retention.partition_chunks says why the others are exact).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask, copy_chunk
from mirror_pump.errors import ExpectedOutcome, TableError
from mirror_pump.lake.format.file_json import file_from_json, file_to_json
from mirror_pump.lake.storage import discard
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.operations.advance_cutline import PartitionFiles
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.retention.fold import write_fold
from mirror_pump.source.catalog.tables import has_columns
from mirror_pump.source.connect import PgConnection, limited, portable_dsn
from mirror_pump.source.heap.block_reader import Chunk, HeapLeaf, chunks_of, read_leaves
from mirror_pump.source.retention.corrections import read_captured
from mirror_pump.source.retention.partition_chunks import (
    Capture,
    PartitionChunk,
    chunk_done,
    forget_chunks,
    plan,
    read_capture,
    read_chunks,
)
from mirror_pump.source.retention.partitions import Partition

_RECORD_TIMEOUT = "30s"
"""How long recording a chunk waits for the table's row in the catalog, which publishes hold for moments."""

_ALTERED = "it was altered meanwhile"
_REWRITTEN = "its heap was rewritten, or its columns changed, while it was copied: it is copied again"
_LOCKED = "another session is altering it: the rest of it is copied afterwards"
_SWEPT = "a sweep may have removed a file of it before it was recorded: that chunk is copied again"
_BEHIND = "the mirror has not followed a change of the table's columns yet"


_TURN = 20.0
"""Seconds after which no further chunk of a partition is begun before other tables have had their turn."""

_CHUNKS = 4
"""Chunks of a partition for each worker, before they become larger than the setting: a kill repeats a part only, and
workers end at about the same time."""
_LARGER = 4
"""At most so many times as large as the setting."""


@dataclass(frozen=True)
class CopyTurn:
    """What one turn has copied of a partition."""

    copied: int
    """Chunks that this turn has copied."""
    left: int
    """Chunks that are still to be copied."""
    rows: int
    """Rows of all chunks that are copied, if this turn has copied any."""


class NotCopied(ExpectedOutcome):
    """The partition cannot be copied now. The text says why."""


class PartitionCopier:
    """Copies partitions, one after the other. Used by one thread."""

    def __init__(self, context: SessionContext, tasks: Tasks) -> None:
        self._context = context
        self._tasks = tasks
        self._raw_text_columns: dict[TableId, frozenset[int]] = {}
        """By table, the field IDs of the columns that needed a raw text column in a chunk so far."""

    def tidy(self, connection: PgConnection, table: MirroredTable) -> None:
        """Forgets chunks of captures that have ended, and removes their files."""
        discard(forget_chunks(connection, table.table_id), self._context.storage)

    def copy(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> CopyTurn:
        """Copies some of a sealed partition that is not copied yet. Raises NotCopied, ThreadStopped and the errors of
        tasks; what is done until then stays done."""
        capture = self._capture(connection, table, partition)
        chunks = self._planned(connection, table, partition, capture)
        left = [chunk for chunk in chunks if not chunk.done]
        if not left:
            return CopyTurn(copied=0, left=0, rows=0)
        refused = self._read(connection, table, partition, left)
        if refused is not None:
            raise NotCopied(refused)
        chunks = read_chunks(connection, table.table_id, partition.partition_id)
        remaining = sum(not chunk.done for chunk in chunks)
        return CopyTurn(len(left) - remaining, remaining, sum(chunk.rows or 0 for chunk in chunks))

    def files(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> PartitionFiles:
        """The files of a partition that is copied, with the changes since its seal. Raises NotCopied. The caller owns
        the files of the changes."""
        capture = self._capture(connection, table, partition)
        chunks = read_chunks(connection, table.table_id, partition.partition_id)
        if not all(chunk.done and chunk.fits(capture) for chunk in chunks):
            raise NotCopied(_ALTERED)
        stored = [file for chunk in chunks for file in chunk.files]
        raw_text_columns = frozenset(field_id for file in stored for field_id in file["raw_text_columns"])
        data = tuple(file_from_json(file) for file in stored)
        changes = self._changes(connection, table, partition, capture)
        if changes is None:
            return PartitionFiles(data, None, (), raw_text_columns)
        versions = tuple(version for _, version in changes.versions)
        return PartitionFiles(data, changes.segment, versions, raw_text_columns | changes.raw_text_columns)

    @staticmethod
    def _capture(connection: PgConnection, table: MirroredTable, partition: Partition) -> Capture:
        capture = read_capture(connection, table.table_id, partition.partition_id)
        if capture is None or capture.filenode is None:
            raise NotCopied(_ALTERED)
        return capture

    def _planned(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, capture: Capture
    ) -> tuple[PartitionChunk, ...]:
        """The partition's chunks, planned now unless they are already. There is always one, also of an empty
        partition: that it was empty has to be recorded, too."""
        table_id, partition_id = table.table_id, partition.partition_id
        chunks = read_chunks(connection, table_id, partition_id)
        if chunks and all(chunk.fits(capture) for chunk in chunks):
            return chunks
        discard(forget_chunks(connection, table_id, partition_id), self._context.storage)
        leaves = read_leaves(connection, TableId(capture.relation_id))
        if [leaf.filenode for leaf in leaves] != [capture.filenode]:
            raise NotCopied(_ALTERED)
        ranges = [(chunk.lo_block, chunk.hi_block) for chunk in chunks_of(leaves, self._chunk_bytes(leaves))]
        plan(connection, table_id, partition_id, capture, ranges or [(0, None)])
        return read_chunks(connection, table_id, partition_id)

    def _chunk_bytes(self, leaves: Sequence[HeapLeaf]) -> int:
        """A chunk's share of the heap: that of the setting, and up to _LARGER times as much of a large partition. Small
        files would only be merged later, each row of them read and written once more."""
        settings = self._context.settings
        share = sum(leaf.blocks * leaf.block_bytes for leaf in leaves) // (_CHUNKS * settings.copy_workers)
        return min(max(settings.copy_chunk_bytes, share), _LARGER * settings.copy_chunk_bytes)

    def _read(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, chunks: Iterable[PartitionChunk]
    ) -> str | None:
        """Has tasks read some of these chunks. Returns why one was not read, or None."""
        dsn = portable_dsn(self._context.dsn, connection)
        waiting = deque(chunks)
        running: dict[Future[ChunkResult], tuple[PartitionChunk, float]] = {}
        refused: str | None = None
        until = time.monotonic() + _TURN
        try:
            while (waiting and time.monotonic() < until) or running:
                while waiting and len(running) < self._context.settings.copy_workers and time.monotonic() < until:
                    chunk = waiting.popleft()
                    began = time.time()
                    running[self._submit(dsn, table, partition, chunk)] = chunk, began
                for future in self._tasks.first_done(running):
                    chunk, began = running.pop(future)
                    result = future.result()
                    refused = self._finished(connection, table, partition, chunk, began, result) or refused
                if refused is not None:
                    waiting.clear()
        finally:
            for future in running:
                if not future.cancel():
                    future.add_done_callback(partial(_remove, self._context))
        return refused

    def _submit(
        self, dsn: str, table: MirroredTable, partition: Partition, chunk: PartitionChunk
    ) -> Future[ChunkResult]:
        assert partition.name is not None
        blocks = Chunk(
            chunk.relation_id,
            partition.name.schema,
            partition.name.name,
            chunk.filenode,
            chunk.lo_block,
            chunk.hi_block,
        )
        raw_text_columns = self._raw_text_columns.get(table.table_id, frozenset())
        task = ChunkTask(dsn, table, blocks, self._context.storage, raw_text_columns=raw_text_columns)
        return self._tasks.runner.submit(copy_chunk, task)

    def _finished(
        self,
        connection: PgConnection,
        table: MirroredTable,
        partition: Partition,
        chunk: PartitionChunk,
        began: float,
        result: ChunkResult,
    ) -> str | None:
        """Records what a task has read. Returns why nothing was recorded, or None."""
        if result.error is not None:
            return result.error
        if result.heap_rewritten:
            discard(forget_chunks(connection, table.table_id, partition.partition_id), self._context.storage)
            return _REWRITTEN
        if result.locked:
            return _LOCKED
        earlier_columns = self._raw_text_columns.get(table.table_id, frozenset())
        self._raw_text_columns[table.table_id] = earlier_columns | result.raw_text_columns
        raw_text_columns = sorted(result.raw_text_columns)
        files = [{**file_to_json(file), "raw_text_columns": raw_text_columns} for file in result.files]
        # If this fails it may still be recorded. If it is not, a sweep removes the files.
        with limited(connection, _RECORD_TIMEOUT):
            current = has_columns(connection, table)
            counts = current and chunk_done(
                connection, table.table_id, partition.partition_id, chunk, result.rows, files, began
            )
        if not counts:
            discard([written.path for written in result.files], self._context.storage)
            return _SWEPT if current else _REWRITTEN
        self._context.observer(
            Step.CHUNK_COPIED,
            table=str(table.name),
            partition=partition.partition_id,
            chunk=chunk.chunk_no,
            rows=result.rows,
        )
        return None

    def _changes(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, capture: Capture
    ) -> FoldCorrections | None:
        """Files of all changes that were captured until now, as of a fold; None if there is none."""
        captured = read_captured(connection, table, partition.partition_id, capture.captured_after)
        if captured is None:
            raise NotCopied(_BEHIND)
        if not captured:
            return None
        try:
            # Without packed keys: the deletes have to reach rows that no key index knows.
            return write_fold(table, partition.hi, captured, None, self._context.storage)
        except ValueError as error:
            raise TableError(
                f"a captured change of {partition.partition_id} cannot be written to the lake: {error}",
                "correct the row that the message is about",
            ) from error


def _remove(context: SessionContext, future: Future[ChunkResult]) -> None:
    """Removes the files of a task whose result is no longer needed. A failed one has removed its own."""
    if not future.cancelled() and future.exception() is None:
        discard([file.path for file in future.result().files], context.storage)
