"""Computes the rows of a table that differ between its heap and the lake table on which its copy builds.

1. Both sides are digested: sums of 128-bit hashes of whole rows, in buckets of keys. Each chunk of the heap is read in
   a short snapshot of its own, after the copy was planned. The lake's side is the rows of files from before the copy
   began: those with a data sequence number below the start sequence number, which no commit changes meanwhile.
2. The lake's rows of unequal buckets are read again, one by one.
3. So are those of the heap. A row that the lake does not have as it is gets copied. The keys of the lake's rows that
   the heap does not have as they are get deleted.

Invariant: for each key that no transaction has changed since the start LSN, the older files with the deletes applied,
together with the copied rows, have exactly what the heap has. Whenever the heap is read, such a key has the same row.
If this differs from the lake's rows, the bucket's sums differ, but for hashes that collide by chance: whatever else the
bucket holds, one side has a row that the other does not have. So the row is looked at, and replaced. For all other keys
anything may come out. Their changes are in the stream, each deletes its key, and is newer than all of this: the
argument of the initial copy (mirror_pump/pipeline/copy/copier.py), with the older files as a further chunk.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from mirror_pump.engine.comparison.differing_chunks import (
    ChunkDigest,
    ChunkDigestTask,
    DifferingChunk,
    DifferingChunkTask,
    LakeRowHashes,
    copy_differing_rows,
    digest_chunk,
)
from mirror_pump.engine.comparison.differing_rows import bucket_bits, unequal_buckets
from mirror_pump.engine.comparison.partition_digests import Comparing, Digest, DigestedRows, FilesTask, digest_files
from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.tier_files import NO_END, tier_column, tier_ranges
from mirror_pump.engine.ingest.chunk_copy import ChunkTask
from mirror_pump.errors import ExpectedOutcome, FileDamaged, FileMissing, LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import write_equality_delete_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, unique_last
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.flow.session_context import ThreadStopped
from mirror_pump.pipeline.flow.tasks import FileTasks
from mirror_pump.pipeline.operations.replace_differing import ReplaceDiffering
from mirror_pump.source.heap.block_reader import Chunk

_TASK_BYTES = 64 << 20
"""Bytes of lake files that one task digests."""
_MOST_BITS = 18
"""A digest of so many buckets has 6 MiB, which each task returns."""
_LOCKED_PAUSE = 0.5
"""Seconds until a chunk is tried again whose heap is locked."""

_ChunkOutcome = TypeVar("_ChunkOutcome", ChunkDigest, DifferingChunk)


class HeapRewritten(ExpectedOutcome):
    """The heap was rewritten since the chunks were planned: the copy has to restart."""


class ChunkFailed(ExpectedOutcome):
    """The table cannot be copied."""


class CopyAbandoned(ExpectedOutcome):
    """The copy is not needed any more, or another one is."""


class IncomparableRows(ExpectedOutcome):
    """The table has to be copied as a whole."""


@dataclass(frozen=True)
class CopySources:
    """What is compared."""

    table: MirroredTable
    chunks: Sequence[Chunk]
    dsn: str
    lake: LakeTable
    """Any state of the lake table since the copy began."""
    most_rows: int
    """Rows of the lake in unequal buckets beyond which the table is copied: some 100 bytes of memory each, and their
    hashes go to each task."""
    storage: StorageOptions


class TableDifference:
    """One comparison. It owns the files that it writes until `computed` returns them."""

    def __init__(
        self,
        sources: CopySources,
        tasks: FileTasks,
        budget: CopyBudget,
        in_flight: int,
        is_current: Callable[[], bool],
        pause: Callable[[float], bool],
    ) -> None:
        """`in_flight`: number of chunks that are read at a time. `is_current` says whether the result is still needed.
        `pause` waits some seconds, and returns whether the thread is to stop."""
        table = sources.table
        packing = KeyPacking.of(LakeSchema.of_table(table), secrets.token_bytes(32))
        if packing is None:
            raise IncomparableRows("a column of its key is a list")
        self._sources = sources
        self._table = table
        self._tasks = tasks
        self._budget = budget
        self._in_flight = in_flight
        self._is_current = is_current
        self._pause = pause
        self._comparing = Comparing(
            table.columns,
            table.key,
            packing,
            HashSecret.draw(),
            PackedKeys.concatenated([], packing.words),
            bucket_bits=bucket_bits(max(sources.lake.records, 0), _MOST_BITS),
            returns_key_columns=True,
        )
        self._chunks = [ChunkTask(sources.dsn, table, chunk, sources.storage) for chunk in sources.chunks]
        self._deletes: tuple[WrittenFile, ...] = ()

    def computed(self) -> ReplaceDiffering:
        """The operation that makes the copy complete. Raises HeapRewritten, ChunkFailed, IncomparableRows,
        CopyAbandoned, ThreadStopped, LakeError, SourceError, ConnectionLost and TaskFailed; nothing remains then."""
        try:
            return self._computed()
        except BaseException:
            self._tasks.abandon(self._sources.storage)
            discard([file.path for file in self._deletes], self._sources.storage)
            raise

    def _computed(self) -> ReplaceDiffering:
        files = self._file_tasks()
        heap, rows = self._heap_digest()
        lake = self._lake_digest(files)
        unequal, _ = unequal_buckets(heap, lake)
        compared = ReplaceDiffering(self._table.generation, (), rows, lake_rows=int(lake.sums[:, 0].sum()))
        if not unequal:
            return compared
        lake_rows = int(lake.sums[sorted(unequal), 0].sum())
        if lake_rows > self._sources.most_rows:
            raise IncomparableRows(f"{lake_rows:,} rows of the lake are in parts that differ")
        chosen = replace(self._comparing, returned_buckets=unequal)
        returned = self._lake_digest([replace(task, comparing=chosen) for task in files]).rows
        chunks = self._copied(LakeRowHashes.of(returned, unequal, self._comparing.bucket_bits))
        places = np.unique(np.concatenate([np.zeros(0, np.int64), *(chunk.places for chunk in chunks)]))
        self._deletes = self._written_deletes(returned, places)
        copied = [chunk.result for chunk in chunks]
        raw_text: frozenset[int] = frozenset().union(*(result.raw_text_columns for result in copied))
        written = (*(file for result in copied for file in result.files), *self._deletes)
        different = sum(chunk.different for chunk in chunks)
        return replace(compared, written=written, raw_text_columns=raw_text, different=different)

    def _file_tasks(self) -> list[FilesTask]:
        """The lake's side: rows at or above the cut-line. Raises IncomparableRows if a file cannot be read."""
        table, sources = self._table, self._sources
        line = CutLine.of(table)
        tier, lowest = (None, 0) if line is None else (tier_column(table), line.cut)
        try:
            ranges = tier_ranges(
                tier,
                sources.lake,
                lowest,
                NO_END,
                sources.storage,
                _TASK_BYTES,
                before=table.data_sequence_number,
            )
            return [FilesTask(chosen, self._comparing) for chosen in ranges]
        except LakeError as error:
            raise IncomparableRows(str(error)) from error

    def _lake_digest(self, files: Sequence[FilesTask]) -> Digest:
        sums = np.zeros((1 << self._comparing.bucket_bits, 3), np.uint64)
        rows: list[DigestedRows] = []

        def add(digest: Digest) -> None:
            nonlocal sums
            sums += digest.sums
            if digest.rows is not None:
                rows.append(digest.rows)

        try:
            submit = self._tasks.runner.submit
            self._each_task(digest_files, files, submit, lambda digest, _: add(digest), lambda: None)
        except (FileMissing, FileDamaged) as error:
            raise IncomparableRows(str(error)) from error
        return Digest(sums, DigestedRows.together(rows) if rows else None)

    def _heap_digest(self) -> tuple[Digest, int]:
        """The digest of the heap, and the number of its rows."""
        sums = np.zeros((1 << self._comparing.bucket_bits, 3), np.uint64)
        rows = 0

        def add(outcome: ChunkDigest) -> None:
            nonlocal sums, rows
            assert outcome.digest is not None
            sums += outcome.digest.sums
            rows += outcome.result.rows

        tasks = [ChunkDigestTask(chunk, self._comparing) for chunk in self._chunks]
        self._each_chunk(digest_chunk, tasks, self._tasks.runner.submit, add)
        return Digest(sums, None), rows

    def _copied(self, lake: LakeRowHashes) -> list[DifferingChunk]:
        """Copies the heap's rows that differ."""
        chunks: list[DifferingChunk] = []
        tasks = [DifferingChunkTask(chunk, self._comparing, lake) for chunk in self._chunks]
        self._each_chunk(copy_differing_rows, tasks, self._tasks.begin, chunks.append)
        return chunks

    def _written_deletes(
        self, rows: DigestedRows | None, places: np.ndarray[Any, np.dtype[np.int64]]
    ) -> tuple[WrittenFile, ...]:
        """Writes the keys of the lake's `rows`, but for those at the `places`."""
        if rows is None:
            return ()
        differing = np.ones(len(rows.keys), np.bool_)
        differing[places] = False
        numbers = np.flatnonzero(differing)
        numbers = numbers[unique_last(rows.keys.take(numbers))]
        schema = LakeSchema.of_table(self._table)
        columns = [column.take(pa.array(numbers)) for column in rows.key_columns]
        keys = pa.table(columns, schema.key.arrow.names)
        table, storage = self._table, self._sources.storage
        return write_equality_delete_files(keys, schema, table.location, storage, table.partitioning)

    def _each_chunk(
        self,
        function: Callable[[Any], _ChunkOutcome],
        tasks: Iterable[Any],
        begin: Callable[[Callable[[Any], Any], Any], Future[Any]],
        add: Callable[[_ChunkOutcome], None],
    ) -> None:
        """Calls `add` with the outcome of each task. Those whose heap is locked are tried again."""
        locked: list[Any] = []

        def take(outcome: _ChunkOutcome, task: Any) -> None:
            result = outcome.result
            self._budget.spend(result.bytes_read)
            if result.heap_rewritten:
                raise HeapRewritten
            if result.error is not None:
                raise ChunkFailed(result.error)
            if result.locked:
                locked.append(task)
            else:
                add(outcome)

        remaining = list(tasks)
        while True:
            self._each_task(function, remaining, begin, take, self._await_budget)
            remaining = locked.copy()
            locked.clear()
            if not remaining:
                return
            if self._pause(_LOCKED_PAUSE):
                raise ThreadStopped

    def _each_task(
        self,
        function: Callable[[Any], Any],
        tasks: Iterable[Any],
        begin: Callable[[Callable[[Any], Any], Any], Future[Any]],
        take: Callable[[Any, Any], None],
        before_each: Callable[[], None],
    ) -> None:
        """Begins the tasks with at most `in_flight` of them at work, and calls `take` with each result and its task, as
        they are done: there may be more results than fit into memory."""
        running: dict[Future[Any], Any] = {}

        def take_done() -> None:
            for done in self._tasks.first_done(running):
                take(done.result(), running.pop(done))

        for task in tasks:
            while len(running) >= self._in_flight:
                take_done()
            before_each()
            if not self._is_current():
                raise CopyAbandoned
            running[begin(function, task)] = task
        while running:
            take_done()

    def _await_budget(self) -> None:
        while (seconds := self._budget.wait_seconds()) > 0:
            if self._pause(seconds):
                raise ThreadStopped
