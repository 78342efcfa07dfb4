"""Which rows carry a deleted key: a set of keys, each with the highest sequence number that deletes it.

Keys are compared whole and exactly. A hash only decides which rows are worth a comparison: most rows are not, and one
look into a table that fits the processor's cache says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, as_numbers

Ints: TypeAlias = npt.NDArray[np.int64]

_SPAN_LIMIT = 1 << 62
"""Products of the columns' numbers of distinct values stay below this, so that they fit in 64 bits."""

_SLOTS_PER_KEY = 8
"""A row whose key is not deleted passes the filter once in so many times at most."""
_LEAST_BITS, _MOST_BITS = 10, 22
"""The filter's size: a byte per slot, 4 MiB at most, what a core's second-level cache holds or nearly so."""


_BATCH_ROWS = 256 * 1024
_MOST_BATCH_ROWS = 2 * 1024 * 1024


class DeletedKeys(Protocol):
    """Keys to look for."""

    batch_rows: int
    """How many rows to search at a time: searching many keys has a fixed cost that wants to be shared by more rows."""

    def find(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        """Rows (numbers in `columns`, ascending) whose key is deleted, and the highest sequence number of its deletes.

        `columns` are the key columns in order, of the types that the keys have, all of one length.
        """
        ...

    def first_between(self, low: int, high: int) -> bool:
        """Whether any key's first column is between two numbers; True where that column is no number."""
        ...


def deleted_keys(parts: Sequence[tuple[pa.Table, int]]) -> DeletedKeys:
    """The keys of several equality-delete files: key columns, and the file's data sequence number."""
    table = pa.concat_tables([keys for keys, _ in parts]).combine_chunks()
    numbers = np.repeat(
        np.array([number for _, number in parts], np.int64), np.array([keys.num_rows for keys, _ in parts], np.int64)
    )
    columns = [_one_array(column) for column in table.columns]
    if len(columns) == 1 and _is_number(columns[0].type):
        return _NumberKeys(as_numbers(columns[0]), numbers)
    return _AnyKeys(columns, numbers)


class _NumberKeys:
    """A single column of integers, dates or timestamps: sorted numbers."""

    batch_rows = _BATCH_ROWS

    def __init__(self, keys: Ints, numbers: Ints) -> None:
        self._keys, self._numbers = _highest(keys, numbers)
        self._filter = _Filter(self._keys)

    def find(self, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
        values = as_numbers(columns[0])
        rows = self._filter.candidates(values)
        candidates = values[rows]
        places = np.searchsorted(self._keys, candidates)
        places[places == len(self._keys)] = 0
        equal = self._keys[places] == candidates
        return rows[equal], self._numbers[places[equal]]

    def first_between(self, low: int, high: int) -> bool:
        return bool(np.searchsorted(self._keys, low, "left") < np.searchsorted(self._keys, high, "right"))


class _AnyKeys:
    """Keys of any types and columns: each column's values are numbered by a dictionary, which compares them exactly;
    the columns' numbers are the digits of the key's."""

    def __init__(self, columns: Sequence[pa.Array], numbers: Ints) -> None:
        self._values = [pc.unique(column) for column in columns]
        # Each search makes dictionaries of the values anew.
        self.batch_rows = min(max(2 * max(map(len, self._values)), _BATCH_ROWS), _MOST_BATCH_ROWS)
        self._filters = [_Filter(_hashes(values)) for values in self._values]
        codes: Ints | None = None
        # Wide keys with many distinct values are made dense in between, and that must be repeated for the rows.
        self._dense: list[Ints | None] = []
        span = 1
        for column, values in zip(columns, self._values, strict=True):
            digits = _codes(column, values)
            dense: Ints | None = None
            if codes is not None and span * len(values) >= _SPAN_LIMIT:
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
                kept = np.flatnonzero(self._filters[index].passes(_hashes(column.take(pa.array(rows)))))
                rows, codes = rows[kept], codes[kept]
            digits = _codes(column.take(pa.array(rows)), values)
            known = digits >= 0
            rows, codes, digits = rows[known], codes[known], digits[known]
            if dense is not None:
                rows, codes, digits = _redone(dense, rows, codes, digits)
            codes = codes * len(values) + digits
        places = np.searchsorted(self._keys, codes)
        places[places == len(self._keys)] = 0
        equal = self._keys[places] == codes
        return rows[equal], self._numbers[places[equal]]

    def first_between(self, low: int, high: int) -> bool:
        if self._first is None:
            return True
        return bool(np.searchsorted(self._first, low, "left") < np.searchsorted(self._first, high, "right"))


class _Filter:
    """Says of most values that are not in a set that they are not: one byte per hash, no false negative."""

    def __init__(self, members: Ints) -> None:
        bits = max(len(members) * _SLOTS_PER_KEY - 1, 1).bit_length()
        self._shift = np.uint64(64 - min(max(bits, _LEAST_BITS), _MOST_BITS))
        self._table = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._table[self._slots(members)] = True

    def passes(self, values: Ints) -> npt.NDArray[np.bool_]:
        """Whether each value may be a member."""
        return self._table[self._slots(values)]

    def candidates(self, values: Ints) -> Ints:
        """Numbers of the values that may be members."""
        return np.flatnonzero(self.passes(values))

    def _slots(self, values: Ints) -> npt.NDArray[np.uint64]:
        slots = values.view(np.uint64) * MULTIPLIER
        slots >>= self._shift
        return slots


def _redone(dense: Ints, rows: Ints, codes: Ints, digits: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows whose code is among `dense`, with its place there for a code."""
    places: Ints = np.searchsorted(dense, codes)
    places[places == len(dense)] = 0
    known = dense[places] == codes
    return rows[known], places[known], digits[known]


def _highest(keys: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """Each key once, ascending, with the highest of its sequence numbers."""
    order = np.lexsort((numbers, keys))
    keys, numbers = keys[order], numbers[order]
    last = np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))
    return keys[last], numbers[last]


def _codes(column: pa.Array, values: pa.Array) -> Ints:
    """Each value's place in `values`; -1 for one that is not there."""
    found: Ints = pc.index_in(column, value_set=values).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_date32(arrow) or pa.types.is_timestamp(arrow))


def _hashes(column: pa.Array) -> Ints:
    """A number for each value: equal values have equal numbers, different ones often different numbers."""
    if _is_number(column.type):
        return as_numbers(column)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return _text_hashes(column)
    if column.type == pa.binary(16) or pa.types.is_decimal128(column.type):
        halves = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), 16 * column.offset)
        hashes: Ints = (halves[0::2] ^ (halves[1::2] * MULTIPLIER)).view(np.int64)
        return hashes
    # Of the other types few values differ (booleans) or none are keys: every row is compared.
    return np.zeros(len(column), np.int64)


def _text_hashes(column: pa.Array) -> Ints:
    """From length, first and last eight bytes: keys that differ elsewhere only are left to the comparison."""
    if not len(column):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    lengths = ends - starts
    data = column.buffers()[2]
    size = data.size if data is not None else 0
    # Eight bytes from any place on: a copy with a margin, seen as overlapping words.
    padded = np.zeros(size + 16, np.uint8)
    if data is not None:
        padded[8 : size + 8] = np.frombuffer(data, np.uint8)
    words = np.lib.stride_tricks.as_strided(padded[:8].view("<u8"), shape=(size + 9,), strides=(1,))
    spare = ((8 - np.minimum(lengths, 8)) * 8).astype(np.uint64)
    first = words[starts + 8]
    last = words[ends]
    # Of a short value only its own bytes count: shifted out in two steps, as a shift by 64 means nothing.
    half = spare >> np.uint64(1)
    first = (first << half) << (spare - half)
    last = (last >> half) >> (spare - half)
    hashes: Ints = (first ^ (last * MULTIPLIER) ^ lengths.astype(np.uint64)).view(np.int64)
    return hashes


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return pa.concat_arrays(chunks.chunks) if isinstance(chunks, pa.ChunkedArray) else chunks
