"""Numbers keys: equal numbers for equal key text, so that sorting integers groups the changes of each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType
from decoders.tuples import Cells, Ints, RawBuffer

_SPAN_LIMIT = 1 << 62
"""Products of the columns' numbers of distinct values stay below this, so that they fit in 64 bits."""


def is_integer_key(types: Sequence[ColumnType]) -> bool:
    """Whether the key's numbers are its values: true for a single integer column."""
    return len(types) == 1 and types[0].is_whole


def key_numbers(buffer: RawBuffer, columns: Sequence[Cells], types: Sequence[ColumnType]) -> Ints:
    """One number per key. `columns` are the cells of the key columns, all TEXT.

    A single integer column's value is the number. Otherwise the values of each column are numbered, integers from their
    minimum and text by a dictionary of its bytes, and these numbers are the digits of the key's number. So no two keys
    share a number, which concatenated texts could not guarantee.
    """
    if is_integer_key(types):
        return _integers(buffer.text(columns[0]))
    numbers, span = _digits(buffer, columns[0], types[0])
    for cells, column in zip(columns[1:], types[1:], strict=True):
        digits, base = _digits(buffer, cells, column)
        if span * base >= _SPAN_LIMIT:
            numbers, span = _dense(numbers)
        if span * base >= _SPAN_LIMIT:
            digits, base = _dense(digits)
        numbers, span = numbers * base + digits, span * base
    return numbers


def _integers(texts: pa.ChunkedArray) -> Ints:
    numbers: Ints = texts.cast(pa.int64()).to_numpy()
    return numbers


def _digits(buffer: RawBuffer, cells: Cells, column: ColumnType) -> tuple[Ints, int]:
    """Numbers from 0 for a column's values, and the highest of them plus one."""
    texts = buffer.text(cells)
    if column.is_whole:
        values = _integers(texts)
        if not len(values):
            return values, 1
        low = int(values.min())
        span = int(values.max()) - low + 1
        return _dense(values) if span >= _SPAN_LIMIT else (values - low, span)
    encoded = texts.dictionary_encode()
    indices = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks] or [np.empty(0, np.int64)])
    numbers = indices.astype(np.int64)
    return numbers, int(numbers.max(initial=0)) + 1


def _dense(numbers: Ints) -> tuple[Ints, int]:
    """Renumbers with consecutive numbers from 0, so at most as many as there are rows. Keeps the grouping."""
    distinct, dense = np.unique(numbers, return_inverse=True)
    return dense.astype(np.int64), max(len(distinct), 1)
