"""Compares a table's heap and lake by digests: sums of hashes over whole rows, in buckets of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mirror_pump.engine.comparison.differing_rows import (
    DifferingRows,
    bucket_bits,
    differing_rows,
    row_set,
    row_words,
    unequal_buckets,
)
from mirror_pump.engine.comparison.digests import (
    Comparing,
    Digest,
    FilesTask,
    HeapTask,
    digest_files,
    digest_heap,
    digest_rows,
)
from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.tier_files import NO_END, tier_column, tier_ranges
from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.raw_text_columns import every_raw_text
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.ops.catch_up_changes import ChangedRow, Key
from mirror_pump.ops.verify.followed_heap import FollowedHeap
from mirror_pump.ops.verify.heap_copy import Disturbed
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.runtime.cores import available_cores
from mirror_pump.source.heap.block_reader import Chunk

TASK_BYTES = 64 << 20
"""Heap or file bytes that one task digests."""
MOST_ROWS = 2_000_000
"""Rows in buckets with a difference that are looked at one by one, on both sides together: some 100 bytes of memory
each."""


@dataclass(frozen=True)
class ComparedDigests:
    """What a comparison has found."""

    heap_rows: int
    lake_rows: int
    differing: DifferingRows | None
    """None if heap and lake are the same."""


class TableDigests:
    """Digests heap and lake at one frontier."""

    def __init__(
        self,
        heap: FollowedHeap,
        lake: LakeTable,
        chunks: Sequence[Chunk],
        snapshot: str,
        dsn: str,
        tasks: Tasks,
        storage: StorageOptions,
    ) -> None:
        """`chunks` of the heap are read in the exported database snapshot."""
        self._heap = heap
        self._table = heap.table
        self._tasks = tasks
        head = lake.metadata.current_snapshot
        rows = 0 if head is None else head.summary.total(Total.RECORDS) or 0
        self._comparing = Comparing(
            self._table.columns,
            self._table.key,
            heap.packing,
            HashSecret.draw(),
            PackedKeys.concatenated([], heap.packing.words),
            bucket_bits=bucket_bits(rows),
            returns_key_columns=True,
        )
        line = CutLine.of(self._table)
        where = self._table.row_filter
        self._heap_tasks = [HeapTask(dsn, chunk, snapshot, self._comparing, where, line) for chunk in chunks]
        tier, lowest = (None, 0) if line is None else (tier_column(self._table), line.cut)
        ranges = tier_ranges(tier, lake, lowest, NO_END, storage, TASK_BYTES)
        self._file_tasks = [FilesTask(chosen, self._comparing) for chosen in ranges]

    def compare(self, frontier: Lsn) -> ComparedDigests:
        """Compares both sides at the frontier of the lake. Raises TableError if too much differs, and Disturbed."""
        self._heap.follow(frontier)
        changes = self._heap.changes
        changed = self._heap.changed(changes)
        left_out = self._heap.packed(list(changes)) if changes else self._comparing.left_out
        heap, lake = self._digests(self._comparing, left_out, changed)
        name = str(self._table.name)
        compared = ComparedDigests(int(heap.sums[:, 0].sum()), int(lake.sums[:, 0].sum()), None)
        buckets, rows = unequal_buckets(heap, lake)
        if not buckets:
            return compared
        if rows > MOST_ROWS:
            raise TableError(
                f"{name}: too much differs to be repaired row by row: heap {compared.heap_rows:,} rows, lake"
                f" {compared.lake_rows:,} rows, differences in {len(buckets):,} of {len(heap.sums):,} parts",
                f"`mirror-pump resync {self._table.name.shell}` copies it again",
            )
        heap, lake = self._digests(replace(self._comparing, returned_buckets=buckets), left_out, changed)
        differing = differing_rows(heap.rows, lake.rows)
        if differing is None:
            raise Disturbed("a second look at its rows found no difference")
        self._require_compared(differing, changes)
        return replace(compared, differing=differing)

    def _digests(self, comparing: Comparing, left_out: PackedKeys, changed: pa.Table) -> tuple[Digest, Digest]:
        """The digests of heap and lake. The heap's side is without the keys `left_out`, and with the `changed` rows."""
        of_heap = replace(comparing, left_out=left_out)
        calls: list[tuple[Callable[[Any], Digest], Any]] = [
            *((digest_files, replace(task, comparing=comparing)) for task in self._file_tasks),
            *((digest_heap, replace(task, comparing=of_heap)) for task in self._heap_tasks),
        ]

        def read_stream() -> None:
            # Or the server ends it.
            self._heap.follow()

        digests = self._tasks.results(calls, 2 * available_cores(), read_stream)
        count, bits = len(self._file_tasks), comparing.bucket_bits
        in_heap = [*digests[count:], self._digest_of(changed, comparing)]
        return Digest.total(in_heap, bits), Digest.total(digests[:count], bits)

    def _digest_of(self, typed: pa.Table, comparing: Comparing) -> Digest:
        """The digest of rows that are in memory."""
        fields = every_raw_text(self._heap.schema).fields
        columns = {field.field_id: plain(typed.column(field.name).combine_chunks()) for field in fields}
        return digest_rows(columns, typed.num_rows, comparing)

    def _require_compared(self, differing: DifferingRows, changes: Mapping[Key, ChangedRow]) -> None:
        """Raises Disturbed unless a look-up by these keys finds the rows of the heap that were compared."""
        rows = self._heap.rows(differing, self._heap.among(differing, changes))
        buckets = frozenset(range(1 << self._comparing.bucket_bits))
        digest = self._digest_of(rows, replace(self._comparing, returned_buckets=buckets))
        looked_up = frozenset() if digest.rows is None else row_set(row_words(digest.rows))
        if looked_up != differing.heap:
            raise Disturbed("a look-up of rows by their keys found others than were compared")
