"""The keys of rows that are not the same in heap and lake, found from digests of both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.comparison.live_rows import KeySet
from mirror_pump.engine.comparison.partition_digests import Digest, DigestedRows
from mirror_pump.lake.key_index.packed_keys import PackedKeys, unique_last

_MOST_BITS = 16
"""A digest of so many buckets has 1.5 MiB."""
_LEAST_BITS = 12
_BUCKET_ROWS = 64


@dataclass(frozen=True)
class DifferingRows:
    """Keys, each once, whose rows are missing in one side, different, or more than one."""

    keys: PackedKeys
    key_columns: tuple[pa.Array, ...]
    heap: frozenset[tuple[int, ...]]
    """The rows of the heap with these keys: the words of the packed key and of the hash."""
    missing: int
    """Keys that only the heap has."""
    extra: int
    """Keys that only the lake has."""
    different: int

    def __len__(self) -> int:
        return len(self.keys)


def bucket_bits(rows: int, most: int = _MOST_BITS) -> int:
    """How many buckets digests of about so many rows have, as a power of two of at most `most`: the rows of a bucket
    with a difference are read again."""
    return min(max((rows // _BUCKET_ROWS).bit_length(), _LEAST_BITS), most)


def unequal_buckets(heap: Digest, lake: Digest) -> tuple[frozenset[int], int]:
    """The buckets whose rows differ, and how many rows they have on both sides."""
    unequal = np.flatnonzero((heap.sums != lake.sums).any(axis=1))
    return frozenset(unequal.tolist()), int(heap.sums[unequal, 0].sum() + lake.sums[unequal, 0].sum())


def differing_rows(heap: DigestedRows | None, lake: DigestedRows | None) -> DifferingRows | None:
    """Compares the rows of both sides, which must have keys as columns. None if they are the same, each as often."""
    sides = [side for side in (heap, lake) if side is not None]
    if not sides:
        return None
    both = DigestedRows.together(sides)
    words = row_words(both)
    heap_rows = 0 if heap is None else len(heap.keys)
    from_heap = np.arange(len(words)) < heap_rows
    # A row counts 1 on the heap's side and -1 on the lake's: what is not 0 in the end is not on both sides as often.
    rows = words.view(np.dtype((np.void, words.dtype.itemsize * words.shape[1]))).ravel()
    _, row_numbers = np.unique(rows, return_inverse=True)
    balance = np.bincount(row_numbers, weights=np.where(from_heap, 1, -1))
    places = np.flatnonzero(balance[row_numbers] != 0)
    if not len(places):
        return None
    distinct = places[unique_last(both.keys.take(places))]
    # Of a key that the lake has twice, one row may be the heap's.
    concerned = KeySet(both.keys.take(distinct)).among(both.keys)
    of_heap, of_lake = words[concerned & from_heap], words[concerned & ~from_heap]
    in_heap, in_lake = row_set(of_heap[:, :2]), row_set(of_lake[:, :2])
    return DifferingRows(
        both.keys.take(distinct),
        tuple(column.take(pa.array(distinct)) for column in both.key_columns),
        row_set(of_heap),
        missing=len(in_heap - in_lake),
        extra=len(in_lake - in_heap),
        different=len(in_heap & in_lake),
    )


def row_words(rows: DigestedRows) -> npt.NDArray[np.uint64]:
    """A line of four words for each row: two of its packed key, two of its hash."""
    first, second = rows.keys.first, rows.keys.second
    columns = (first, np.zeros_like(first) if second is None else second)
    return np.ascontiguousarray(np.stack([*(column.view(np.uint64) for column in columns), *rows.hashes], axis=1))


def row_set(words: Iterable[npt.NDArray[np.uint64]]) -> frozenset[tuple[int, ...]]:
    return frozenset(tuple(line.tolist()) for line in words)
