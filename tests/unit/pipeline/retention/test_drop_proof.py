"""Which rows of a comparison are compared one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from mirror_pump.engine.comparison.digests import Digest, DigestedRows, HashedRows
from mirror_pump.engine.comparison.row_hashes import BUCKETS
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.pipeline.flow.digests import Digests
from mirror_pump.pipeline.retention.drop_proof import compare_sides

Row = tuple[int, int]
"""The key, whose remainder is the bucket, and its hash."""


class RecordedRows:
    """Rows of one side, the buckets whose rows were requested, and how often all hashes were."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = [*rows]
        self.asked: list[frozenset[int]] = []
        self.passes = 0

    def sums(self) -> Digest:
        sums = np.zeros((BUCKETS, 3), np.uint64)
        for key, hashed in self._rows:
            sums[key % BUCKETS] += np.array([1, hashed, hashed], np.uint64)
        return Digest(sums, None)

    def hashed(self, first_bucket: int) -> Iterator[Digest]:
        """In some parts."""
        self.passes += 1
        size = len(self._rows) // 4 + 1
        for begin in range(0, len(self._rows), size):
            part = RecordedRows(self._rows[begin : begin + size])
            given = [(key % BUCKETS, hashed) for key, hashed in part._rows if key % BUCKETS >= first_bucket]
            hashes = np.array([hashed for _, hashed in given], np.uint64)
            buckets = np.array([bucket for bucket, _ in given], np.uint16)
            yield Digest(part.sums().sums, None, hashes=HashedRows.together([HashedRows(buckets, (hashes, hashes))]))

    def rows(self, wanted: frozenset[int], among: PackedKeys | None = None) -> Digest:
        self.asked.append(wanted)
        kept = None if among is None else set(among.first.tolist())
        given = [row for row in self._rows if row[0] % BUCKETS in wanted and (kept is None or row[0] in kept)]
        hashes = np.array([hashed for _, hashed in given], np.uint64)
        keys = pa.array([key for key, _ in given], pa.int64())
        rows = DigestedRows(PackedKeys(keys.to_numpy(), None), (hashes, hashes), (keys,))
        return Digest(self.sums().sums, rows if given else None)


class RecordedDigests(Digests):
    def __init__(self, heap: RecordedRows, lake: RecordedRows) -> None:
        self._heap_rows, self._lake_rows = heap, lake

    def both(self, buckets: frozenset[int] | None = None) -> tuple[Digest, Digest]:
        sides = self._heap_rows, self._lake_rows
        heap, lake = (side.sums() if buckets is None else side.rows(buckets) for side in sides)
        return heap, lake

    def hashed_heap(self, first_bucket: int) -> Iterator[Digest]:
        return self._heap_rows.hashed(first_bucket)

    def hashed_lake(self, first_bucket: int) -> Iterator[Digest]:
        return self._lake_rows.hashed(first_bucket)

    def heap(self, buckets: frozenset[int]) -> Digest:
        return self._heap_rows.rows(buckets)

    def lake(self, buckets: frozenset[int], among: PackedKeys) -> Digest:
        return self._lake_rows.rows(buckets, among)


def compare(heap: RecordedRows, lake: RecordedRows, *, truncated: bool, most_rows: int = 100) -> tuple[int, list[str]]:
    return compare_sides(RecordedDigests(heap, lake), truncated=truncated, most_rows=most_rows)


LAKE = [(key, key + 7) for key in range(2 * BUCKETS)]


def test_of_an_empty_heap_no_row_is_looked_at() -> None:
    heap, cold = RecordedRows([]), RecordedRows(LAKE)
    assert compare(heap, cold, truncated=True) == (0, [])
    assert heap.asked == cold.asked == []
    assert (heap.passes, cold.passes) == (1, 0)


def test_of_a_truncated_partition_each_side_is_read_once() -> None:
    heap, cold = RecordedRows(LAKE[:100]), RecordedRows(LAKE)
    assert compare(heap, cold, truncated=True) == (100, [])
    assert heap.asked == cold.asked == []
    assert (heap.passes, cold.passes) == (1, 1)


@pytest.mark.parametrize("most_rows", [1, 30, 99])
def test_of_a_truncated_partition_few_rows_are_held_at_once(most_rows: int) -> None:
    """And all of a bucket with more."""
    rows = [*LAKE[:50], *LAKE[BUCKETS : BUCKETS + 50]]
    heap, cold = RecordedRows(rows), RecordedRows(LAKE)
    assert compare(heap, cold, truncated=True, most_rows=most_rows) == (100, [])
    assert 100 / max(most_rows, 2) <= cold.passes <= 1 + 4 * 100 / most_rows
    lacking = [*rows, (49 + 2 * BUCKETS, 3)]
    assert compare(RecordedRows(lacking), cold, truncated=True, most_rows=most_rows)[1] != []


def test_a_row_that_the_lake_has_twice_is_found() -> None:
    heap, cold = RecordedRows(LAKE[:20]), RecordedRows([*LAKE, LAKE[5]])
    assert compare(heap, cold, truncated=True) == (20, ["5: other values"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [([*LAKE[:20], (9 * BUCKETS, 1)], f"{9 * BUCKETS}: not in the lake"), ([(3, 11)], "3: other values")],
)
def test_of_a_truncated_partition_rows_that_the_lake_lacks_are_named(rows: list[Row], message: str) -> None:
    assert compare(RecordedRows(rows), RecordedRows(LAKE), truncated=True) == (len(rows), [message])


def test_of_any_other_partition_some_differing_buckets_are_looked_at() -> None:
    assert compare(RecordedRows(LAKE), RecordedRows(LAKE), truncated=False) == (len(LAKE), [])
    heap, cold = RecordedRows(LAKE[10:]), RecordedRows(LAKE)
    rows, differing = compare(heap, cold, truncated=False)
    assert rows == len(LAKE) - 10
    assert differing == [f"{key}: not in the heap" for key in range(8)]
    assert heap.asked == cold.asked == [frozenset(range(8))]
    _, differing = compare(RecordedRows(LAKE[:1] * 2), RecordedRows(LAKE[:1]), truncated=False)
    assert len(differing) == 1
