"""The keys of rows that are not the same in heap and lake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.comparison.digests import ComparisonParameters, Digest, DigestedRows
from mirror_pump.engine.comparison.key_sums import computed_keys
from mirror_pump.lake.key_index.packed_keys import PackedKeys, codes_of

_LEAST_BITS = 12
_BUCKET_ROWS = 16
BooleanArray = npt.NDArray[np.bool_]


def bucket_bits(rows: int, most: int) -> int:
    """How many buckets digests of about so many rows have, as a power of two of at most `most`: the rows of a bucket
    with a difference may have to be read again."""
    return min(max((rows // _BUCKET_ROWS).bit_length(), _LEAST_BITS), most)


def unequal_buckets(heap: Digest, lake: Digest) -> frozenset[int]:
    """The buckets whose rows differ."""
    return frozenset(np.flatnonzero((heap.sums != lake.sums).any(axis=1)).tolist())


@dataclass(frozen=True)
class DifferingKeys:
    """Keys, each once, whose rows are missing in one side, different, or not as many."""

    keys: PackedKeys
    columns: tuple[pa.Array, ...]
    """The values of the key columns."""
    in_heap: BooleanArray
    in_lake: BooleanArray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def missing(self) -> int:
        """Number of keys that the lake lacks. Others may have equal rows on both sides, which keys computed from sums
        do not tell."""
        return int((self.in_heap & ~self.in_lake).sum())

    @classmethod
    def computed(cls, heap: Digest, lake: Digest, comparing: ComparisonParameters) -> Self | None:
        """From the sums of both sides; None if too many keys differ, or if keys are hashed."""
        if heap.key_sums is None or lake.key_sums is None:
            return None
        sides = computed_keys((heap.sums, heap.key_sums), (lake.sums, lake.key_sums))
        if sides is None:
            return None
        keys = PackedKeys.concatenated(sides, comparing.packing.words)
        return cls._of(keys, comparing.packing.unpack(keys), np.arange(len(keys)) < len(sides[0]))

    @classmethod
    def of_rows(cls, heap: DigestedRows | None, lake: DigestedRows | None) -> Self | None:
        """From rows of both sides. None if they are the same, each as often."""
        sides = [side for side in (heap, lake) if side is not None]
        if not sides:
            return None
        both = DigestedRows.together(sides)
        words = [both.keys.first, both.keys.second, *both.hashes]
        lines = np.ascontiguousarray(np.column_stack([word.view(np.uint64) for word in words if word is not None]))
        # A row counts 1 on the heap's side and -1 on the lake's: what is not 0 in the end is not on both as often.
        rows = lines.view(np.dtype((np.void, lines.dtype.itemsize * lines.shape[1]))).ravel()
        from_heap = np.arange(len(rows)) < (0 if heap is None else len(heap.keys))
        _, row_numbers = np.unique(rows, return_inverse=True)
        balance = np.bincount(row_numbers, weights=np.where(from_heap, 1, -1))
        codes, count = codes_of(both.keys)
        differs = np.zeros(count, np.bool_)
        differs[codes[balance[row_numbers] != 0]] = True
        places = np.flatnonzero(differs[codes])
        columns = tuple(column.take(pa.array(places)) for column in both.key_columns)
        return cls._of(both.keys.take(places), columns, from_heap[places]) if len(places) else None

    @classmethod
    def _of(cls, keys: PackedKeys, columns: tuple[pa.Array, ...], from_heap: BooleanArray) -> Self:
        """Of rows with these keys."""
        codes, count = codes_of(keys)
        in_heap, in_lake, first = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.int64)
        in_heap[codes[from_heap]] = True
        in_lake[codes[~from_heap]] = True
        first[codes] = np.arange(len(codes))
        taken = tuple(column.take(pa.array(first)) for column in columns)
        return cls(keys.take(first), taken, in_heap, in_lake)
