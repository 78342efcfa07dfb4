"""Computes the rows of a table that differ between its heap and the lake table on which its copy builds.

1. Both sides are digested side by side: sums of 128-bit hashes of whole rows, in buckets of keys. Each chunk of the
   heap is read in a short snapshot of its own, after the copy was planned. The lake's side is the rows of files from
   before the copy began: those with a data sequence number below the start sequence number, which no commit changes
   meanwhile.
2. The keys whose rows differ are computed from the sums. If that cannot be done, because they are too many or hashed,
   the rows of unequal buckets are read again, one by one.
3. The heap's rows with these keys get copied, which PostgreSQL finds by an index if it can, and the keys of the lake's
   rows get deleted.

Invariant: for each key that no transaction has changed since the start LSN, the older files with the deletes applied,
together with the copied rows, have exactly what the heap has. Whenever the heap is read, such a key has the same row.
If this differs from the lake's rows, the bucket's sums differ, but for hashes that collide by chance: whatever else the
bucket holds, one side has a row that the other does not have. So its key is among those that are replaced, all rows of
it. For all other keys anything may come out. Their changes are in the stream, each deletes its key, and is newer than
all of this: the argument of the initial copy (mirror_pump/pipeline/copy/copier.py), with the older files as a further
chunk.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from mirror_pump.engine.comparison.differing_chunks import KeyedChunkTask, copy_keyed_rows
from mirror_pump.engine.comparison.differing_keys import DifferingKeys, bucket_bits, unequal_buckets
from mirror_pump.engine.comparison.digests import ComparisonParameters
from mirror_pump.engine.comparison.live_rows import TierRange
from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.tier_files import NO_END, tier_ranges
from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask
from mirror_pump.errors import ExpectedOutcome, FileDamaged, FileMissing, LakeError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import write_equality_delete_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.flow.digests import LOCKED_PAUSE, Digests
from mirror_pump.pipeline.flow.session_context import ThreadStopped
from mirror_pump.pipeline.flow.tasks import FileTasks, Tasks
from mirror_pump.pipeline.operations.replace_differing import ReplaceDiffering
from mirror_pump.source.heap.block_reader import Chunk, FilenodeChanged
from mirror_pump.source.heap.key_condition import key_condition

_TASK_BYTES = 64 << 20
"""Bytes of lake files that one task digests."""
_MOST_BITS = 18
"""A digest of so many buckets has 12 to 18 MiB, which each task returns."""
_MOST_LOOKED_UP = 50_000
"""Keys that PostgreSQL looks up. Of more, the whole heap is read for them."""


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
    """Rows of heap or lake in unequal buckets beyond which the table is copied: some 100 bytes of memory each, and
    their keys go to each task."""
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
        self._comparing = ComparisonParameters(
            table.columns,
            table.key,
            packing,
            HashSecret.draw(),
            PackedKeys.concatenated([], packing.words),
            bucket_bits=bucket_bits(max(sources.lake.records, 0), _MOST_BITS),
            sums_keys=packing.reversible,
        )
        self._chunks = [ChunkTask(sources.dsn, table, chunk, sources.storage) for chunk in sources.chunks]
        self._deletes: tuple[WrittenFile, ...] = ()

    def computed(self) -> ReplaceDiffering:
        """The operation that makes the copy complete. Raises FilenodeChanged, TableError, IncomparableRows,
        CopyAbandoned, ThreadStopped, LakeError, SourceError, ConnectionLost and TaskFailed; nothing remains then."""
        try:
            return self._computed()
        except BaseException:
            self._tasks.abandon(self._sources.storage)
            discard([file.path for file in self._deletes], self._sources.storage)
            raise

    def _computed(self) -> ReplaceDiffering:
        try:
            compared, keys = self._differing()
        except (FileMissing, FileDamaged) as error:
            raise IncomparableRows(str(error)) from error
        if keys is None:
            return compared
        copied = self._copied(keys)
        self._deletes = self._written_deletes(keys)
        raw_text: frozenset[int] = frozenset().union(*(result.raw_text_columns for result in copied))
        written = (*(file for result in copied for file in result.files), *self._deletes)
        rows = sum(file.record_count for result in copied for file in result.files)
        return replace(compared, written=written, raw_text_columns=raw_text, different=max(rows - keys.missing, 0))

    def _differing(self) -> tuple[ReplaceDiffering, DifferingKeys | None]:
        """What was compared, and the keys whose rows differ; None if none do."""
        digests = Digests(
            self._comparing,
            self._chunks,
            self._file_ranges(),
            Tasks(self._tasks.runner, self._tasks.stopping),
            self._in_flight,
            self._before_each,
            self._budget.spend,
            self._pause,
        )
        heap, lake = digests.both()
        unequal = unequal_buckets(heap, lake)
        compared = ReplaceDiffering(self._table.generation, (), heap.count, lake_rows=lake.count)
        if not unequal:
            return compared, None
        keys = DifferingKeys.computed(heap, lake, self._comparing)
        if keys is not None and len(keys) <= self._sources.most_rows:
            return compared, keys
        for side, digest in (("heap", heap), ("lake", lake)):
            rows = int(digest.sums[sorted(unequal), 0].sum())
            if rows > self._sources.most_rows:
                raise IncomparableRows(f"{rows:,} rows of the {side} are in parts that differ")
        heap_rows, lake_rows = digests.both(unequal)
        return compared, DifferingKeys.of_rows(heap_rows.rows, lake_rows.rows)

    def _file_ranges(self) -> list[TierRange]:
        """The lake's side: rows at or above the cut-line. Raises IncomparableRows if a file cannot be read."""
        table, sources = self._table, self._sources
        line = CutLine.of(table)
        tier, lowest = (None, 0) if line is None else (table.tier_column, line.cut)
        before = table.data_sequence_number
        try:
            return list(tier_ranges(tier, sources.lake, lowest, NO_END, sources.storage, _TASK_BYTES, before=before))
        except LakeError as error:
            raise IncomparableRows(str(error)) from error

    def _copied(self, keys: DifferingKeys) -> list[ChunkResult]:
        """Copies the heap's rows with these keys."""
        chunks = self._chunks
        condition = None
        if len(keys) <= _MOST_LOOKED_UP:
            condition = key_condition(self._table.key_columns, keys.columns)
        if condition is not None:
            leaves = dict.fromkeys(replace(task.chunk, lo_block=0, hi_block=None) for task in chunks)
            chunks = [replace(chunks[0], chunk=leaf, condition=condition) for leaf in leaves]
        results: list[ChunkResult] = []
        remaining = [KeyedChunkTask(chunk, self._comparing.packing, keys.keys) for chunk in chunks]
        while remaining:
            calls = ((copy_keyed_rows, task) for task in remaining)
            remaining = []
            for task, result in self._tasks.as_done(calls, self._in_flight, self._before_each):
                self._budget.spend(result.bytes_read)
                if result.heap_rewritten:
                    raise FilenodeChanged(f"{self._table.name} was rewritten or altered while it was compared")
                if result.error is not None:
                    raise TableError(result.error)
                if result.locked:
                    remaining.append(task)
                else:
                    results.append(result)
            if remaining and self._pause(LOCKED_PAUSE):
                raise ThreadStopped
        return results

    def _written_deletes(self, keys: DifferingKeys) -> tuple[WrittenFile, ...]:
        """Writes the keys of the lake's rows."""
        schema = LakeSchema.of_table(self._table)
        table, storage = self._table, self._sources.storage
        columns = [column.filter(pa.array(keys.in_lake)) for column in keys.columns]
        deleted = pa.table(columns, schema.key.arrow.names)
        return write_equality_delete_files(deleted, schema, table.location, storage, table.partitioning)

    def _before_each(self) -> None:
        while (seconds := self._budget.wait_seconds()) > 0:
            if self._pause(seconds):
                raise ThreadStopped
        if not self._is_current():
            raise CopyAbandoned
