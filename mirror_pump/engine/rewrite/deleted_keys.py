"""Finds rows that carry a deleted key, in a set of keys with the highest sequence number that deletes each.

Keys are compared as a whole and exactly. A hash filter only selects the rows worth a comparison: most rows are not, and
a single look-up in a table that fits the CPU cache tells so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.format.sorted_numbers import found_among
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, as_numbers

Ints: TypeAlias = npt.NDArray[np.int64]

SPAN_LIMIT = 1 << 62
"""Products of the columns' numbers of distinct values stay below this, so that they fit in 64 bits."""

_SLOTS_PER_KEY = 8
"""The filter passes at most one in this many rows whose key is not deleted."""
_LEAST_BITS, _MOST_BITS = 10, 22
"""Bounds of the filter's size, one byte per slot: at most 4 MiB, about what a core's second-level cache holds."""


_BATCH_ROWS = 256 * 1024
_MOST_BATCH_ROWS = 2 * 1024 * 1024


class DeletedKeys(Protocol):
    """A set of deleted keys to search for."""

    batch_rows: int
    """How many rows to search at a time. Searching for many keys has a fixed cost, which more rows share."""

    def find(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        """Rows whose key is deleted (ascending indexes into `columns`), and the highest sequence number of its deletes.

        `columns` are the key columns in order, with the keys' types, all of equal length.
        """
        ...

    def first_between(self, low: int, high: int) -> bool:
        """Whether any key's first column lies between two numbers; always True if that column is not a number."""
        ...


def deleted_keys(parts: Sequence[tuple[pa.Table, int]], span_limit: int = SPAN_LIMIT) -> DeletedKeys:
    """The keys of several equality-delete files. `parts`: the key columns and the data sequence number of each file."""
    table = pa.concat_tables([keys for keys, _ in parts]).combine_chunks()
    numbers = np.repeat(
        np.array([number for _, number in parts], np.int64), np.array([keys.num_rows for keys, _ in parts], np.int64)
    )
    columns = [_one_array(column) for column in table.columns]
    if len(columns) == 1 and _is_number(columns[0].type):
        return _NumberKeys(as_numbers(columns[0]), numbers)
    return _AnyKeys(columns, numbers, span_limit)


class _NumberKeys:
    """Keys of a single column of integers, dates or timestamps, as sorted numbers."""

    batch_rows = _BATCH_ROWS

    def __init__(self, keys: Ints, numbers: Ints) -> None:
        self._keys, self._numbers = _highest(keys, numbers)
        self._filter = _Filter(self._keys)

    def find(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        values = as_numbers(columns[0])
        rows = self._filter.candidates(values)
        candidates = values[rows]
        places, equal = found_among(self._keys, candidates)
        return rows[equal], self._numbers[places[equal]]

    def first_between(self, low: int, high: int) -> bool:
        return bool(np.searchsorted(self._keys, low, "left") < np.searchsorted(self._keys, high, "right"))


class _AnyKeys:
    """Keys of any types and columns. A dictionary, which compares exactly, numbers the values of each column. The
    columns' numbers are the digits of the key's number."""

    def __init__(self, columns: Sequence[pa.Array], numbers: Ints, span_limit: int) -> None:
        self._values = [pc.unique(column) for column in columns]
        # Each search builds the dictionaries again.
        self.batch_rows = min(max(2 * max(map(len, self._values)), _BATCH_ROWS), _MOST_BATCH_ROWS)
        self._filters = [_Filter(_hashes(values)) for values in self._values]
        codes: Ints | None = None
        # Wide keys with many distinct values are renumbered densely on the way. The rows' codes have to be as well.
        self._dense: list[Ints | None] = []
        span = 1
        for column, values in zip(columns, self._values, strict=True):
            digits = _codes(column, values)
            dense: Ints | None = None
            if codes is not None and span * len(values) >= span_limit:
                dense = np.unique(codes)
                codes, span = np.searchsorted(dense, codes), len(dense)
            self._dense.append(dense)
            codes = digits if codes is None else codes * len(values) + digits
            span *= len(values)
        assert codes is not None
        self._keys, self._numbers = _highest(codes, numbers)
        first = self._values[0]
        self._first = np.sort(as_numbers(first)) if _is_number(first.type) else None

    def find(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        rows = self._filters[0].candidates(_hashes(columns[0]))
        codes = np.zeros(len(rows), np.int64)
        for index, (column, values, dense) in enumerate(zip(columns, self._values, self._dense, strict=True)):
            if index:
                candidates = np.flatnonzero(self._filters[index].passes(_hashes(column.take(pa.array(rows)))))
                rows, codes = rows[candidates], codes[candidates]
            digits = _codes(column.take(pa.array(rows)), values)
            has_digit = digits >= 0
            rows, codes, digits = rows[has_digit], codes[has_digit], digits[has_digit]
            if dense is not None:
                rows, codes, digits = _redone(dense, rows, codes, digits)
            codes = codes * len(values) + digits
        places, equal = found_among(self._keys, codes)
        return rows[equal], self._numbers[places[equal]]

    def first_between(self, low: int, high: int) -> bool:
        if self._first is None:
            return True
        return bool(np.searchsorted(self._first, low, "left") < np.searchsorted(self._first, high, "right"))


class _Filter:
    """Rules out most values that are not in a set: one byte per hash, no false negatives."""

    def __init__(self, members: Ints) -> None:
        bits = max(len(members) * _SLOTS_PER_KEY - 1, 1).bit_length()
        self._shift = np.uint64(64 - min(max(bits, _LEAST_BITS), _MOST_BITS))
        self._table = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._table[self._slots(members)] = True

    def passes(self, values: Ints) -> npt.NDArray[np.bool_]:
        """Whether each value may be a member."""
        return self._table[self._slots(values)]

    def candidates(self, values: Ints) -> Ints:
        """Indexes of the values that may be members."""
        return np.flatnonzero(self.passes(values))

    def _slots(self, values: Ints) -> npt.NDArray[np.uint64]:
        slots = values.view(np.uint64) * MULTIPLIER
        slots >>= self._shift
        return slots


def _redone(dense: Ints, rows: Ints, codes: Ints, digits: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows whose code is among `dense`; their new code is its index there."""
    places, is_dense = found_among(dense, codes)
    return rows[is_dense], places[is_dense], digits[is_dense]


def _highest(keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """Each key once, ascending, with the highest of its sequence numbers."""
    order = np.lexsort((numbers, keys))
    keys, numbers = keys[order], numbers[order]
    last = np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))
    return keys[last], numbers[last]


def _codes(column: pa.Array, values: pa.Array) -> Ints:
    """Index of each value in `values`; -1 if it is not there."""
    codes: Ints = pc.index_in(column, value_set=values).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_date32(arrow) or pa.types.is_timestamp(arrow))


def _hashes(column: pa.Array) -> Ints:
    """A number for each value: equal values have equal numbers, different values mostly different ones."""
    if _is_number(column.type):
        return as_numbers(column)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return _text_hashes(column)
    if column.type == pa.binary(16) or pa.types.is_decimal128(column.type):
        halves = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), 16 * column.offset)
        hashes: Ints = (halves[0::2] ^ (halves[1::2] * MULTIPLIER)).view(np.int64)
        return hashes
    # The other types have few distinct values (booleans) or are no keys, so every row is compared.
    return np.zeros(len(column), np.int64)


def _text_hashes(column: pa.Array) -> Ints:
    """Hashes of length, first and last eight bytes. Others are left to the exact comparison."""
    if not len(column):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    lengths = ends - starts
    data = column.buffers()[2]
    size = data.size if data is not None else 0
    # Eight bytes at any position: a padded copy, viewed as overlapping words.
    padded = np.zeros(size + 16, np.uint8)
    if data is not None:
        padded[8 : size + 8] = np.frombuffer(data, np.uint8)
    words = np.lib.stride_tricks.as_strided(padded[:8].view("<u8"), shape=(size + 9,), strides=(1,))
    excess = ((8 - np.minimum(lengths, 8)) * 8).astype(np.uint64)
    first = words[starts + 8]
    last = words[ends]
    # Only a short value's own bytes count; the others are shifted out in two steps, as a shift by 64 is undefined.
    half = excess >> np.uint64(1)
    first = (first << half) << (excess - half)
    last = (last >> half) >> (excess - half)
    hashes: Ints = (first ^ (last * MULTIPLIER) ^ lengths.astype(np.uint64)).view(np.int64)
    return hashes


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return pa.concat_arrays(chunks.chunks) if isinstance(chunks, pa.ChunkedArray) else chunks
