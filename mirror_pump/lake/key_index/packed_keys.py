"""Keys packed into one or two 64-bit words, as the key index holds them, so that numpy can compare millions of them.

Keys of fixed width of at most 16 bytes in total (integers, dates, timestamps, uuid, decimals) are packed unchanged, so
equal words mean equal keys. Other keys are hashed to 128 bits under a secret of the process
(mirror_pump.lake.key_index.hashed_keys). Among 10^9 keys, the probability of a collision is about 10^-21.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.columns import ColumnType
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.hashed_keys import ColumnBytes, hashed_words

Words: TypeAlias = npt.NDArray[np.int64]

_WORD, _MOST = 8, 16
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: spreads neighbouring values over the upper bits of the product. It is odd, so multiplying
by it is reversible."""


@dataclass(frozen=True)
class PackedKeys:
    """A sequence of packed keys, all of the same number of int64 words."""

    first: Words
    second: Words | None
    """None if a key fits in one word."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.first.nbytes) + (0 if self.second is None else int(self.second.nbytes))

    def take(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice) -> PackedKeys:
        """The keys at these indexes, or where a mask is true; for a slice, a view."""
        return PackedKeys(self.first[places], None if self.second is None else self.second[places])

    @staticmethod
    def concatenated(parts: Sequence[PackedKeys], words: int) -> PackedKeys:
        """The keys of all parts in order. `words` is the number of words of each key."""
        nothing = np.zeros(0, np.int64)
        first = np.concatenate([nothing, *(part.first for part in parts)])
        if words == 1:
            return PackedKeys(first, None)
        return PackedKeys(first, np.concatenate([nothing, *(part.second for part in parts if part.second is not None)]))


@dataclass(frozen=True)
class KeyPacking:
    """How the keys of one table are packed. Picklable: tasks pack keys, and the driver's main loop compares them."""

    types: tuple[ColumnType, ...]
    """Types of the key columns, in order."""
    secret: bytes
    """Key of the hash, 1 to 64 bytes. Keys packed under different secrets are not comparable."""

    @classmethod
    def of(cls, schema: LakeSchema, secret: bytes) -> Self | None:
        """The packing of a table's keys; None if a key column has a kind that cannot be packed (lists), or without
        a key."""
        types = tuple(field.type for field in schema.key.fields)
        packable = all(column_type.facts.key_bytes or column_type.facts.is_bytes for column_type in types)
        return cls(types, secret) if types and packable else None

    @property
    def words(self) -> int:
        """Number of words of a packed key, 1 or 2."""
        return 1 if self._width is not None and self._width <= _WORD else 2

    @property
    def _width(self) -> int | None:
        """Width of a key in bytes; None if keys have any length."""
        widths = [column_type.facts.key_bytes for column_type in self.types]
        fixed_widths = [width for width in widths if width is not None]
        return sum(fixed_widths) if len(fixed_widths) == len(widths) else None

    @property
    def reversible(self) -> bool:
        """Whether packed keys tell the values that were packed: not those that are hashed."""
        return self._width is not None and self._width <= _MOST

    def pack(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> PackedKeys:
        """Packs the key columns' values. They must have the packing's Arrow types and hold no NULL."""
        arrays = [_plain(column, kind.arrow) for column, kind in zip(columns, self.types, strict=True)]
        if len(arrays) == 1 and self.words == 1:
            return PackedKeys(as_numbers(arrays[0]), None)
        if self.reversible:
            digits = np.zeros((len(arrays[0]), _WORD * self.words), np.uint8)
            begin = 0
            for array in arrays:
                raw = _raw(array)
                if raw.shape[1] == _WORD and not begin % _WORD:
                    # Whole words, in a fifth of the time.
                    digits.view(np.int64)[:, begin // _WORD] = raw.reshape(-1).view(np.int64)
                else:
                    digits[:, begin : begin + raw.shape[1]] = raw
                begin += raw.shape[1]
            return _words(digits.reshape(-1).view(np.int64), self.words)
        return PackedKeys(*hashed_words([_bytes_of(array) for array in arrays], self.secret))

    def unpack(self, keys: PackedKeys) -> tuple[pa.Array, ...]:
        """The key columns' values. The packing must be reversible."""
        words = [keys.first]
        if keys.second is not None:
            words = [_mixed_with(keys.first, keys.second), keys.second]
        digits = np.column_stack(words).view(np.uint8).reshape(len(keys), _WORD * len(words))
        columns, begin = [], 0
        for column_type in self.types:
            width = column_type.facts.key_bytes
            assert width is not None, column_type
            end = begin + width
            raw = np.ascontiguousarray(digits[:, begin:end])
            if pa.types.is_boolean(column_type.arrow):
                columns.append(pa.array(raw[:, 0] != 0))
            else:
                columns.append(pa.Array.from_buffers(column_type.arrow, len(keys), [None, pa.py_buffer(raw)]))
            begin = end
        return tuple(columns)


def unique_last(keys: PackedKeys) -> npt.NDArray[np.int64]:
    """Index of the last occurrence of each distinct key, ordered by the keys' first words."""
    order, new = _ordered(keys)
    last: npt.NDArray[np.int64] = order[np.append(new, np.ones(min(len(order), 1), np.bool_))]
    return last


def codes_of(keys: PackedKeys) -> tuple[npt.NDArray[np.int64], int]:
    """A number for each key, equal for equal keys, and the count of distinct numbers."""
    if not len(keys):
        return np.zeros(0, np.int64), 0
    order, new = _ordered(keys)
    codes: npt.NDArray[np.int64] = np.empty(len(order), np.int64)
    codes[order] = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
    return codes, int(codes[order[-1]]) + 1


def _ordered(keys: PackedKeys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The sorted order of the keys (stable), and for each key but the first whether it differs from its predecessor."""
    if keys.second is None:
        order = stable_order(keys.first)
        first = keys.first[order]
        return order, first[1:] != first[:-1]
    order = np.lexsort((keys.second, keys.first))
    first, second = keys.first[order], keys.second[order]
    return order, (first[1:] != first[:-1]) | (second[1:] != second[:-1])


def stable_order(words: Words) -> npt.NDArray[np.int64]:
    """The order that sorts the words, equal ones in the order in which they are.

    Words of a small range, as most integer keys are, and their indexes fit into one number together. Sorting numbers is
    several times faster than sorting indexes by what they refer to.
    """
    if len(words) < 2:
        return np.arange(len(words))
    low, bits = int(words.min()), len(words).bit_length()
    if (int(words.max()) - low).bit_length() + bits > 63:
        return np.argsort(words, kind="stable")
    numbers: Words = ((words - low) << bits) | np.arange(len(words))
    numbers.sort()
    return numbers & ((1 << bits) - 1)


def _words(digits: Words, words: int) -> PackedKeys:
    if words == 1:
        return PackedKeys(digits, None)
    # Searches go by the first word, so the second is mixed into it: UUIDs of one millisecond share their first halves
    # and would otherwise all share a first word. The pair still determines the key.
    second = np.ascontiguousarray(digits[1::2])
    return PackedKeys(_mixed_with(digits[0::2], second), second)


def _mixed_with(first: Words, second: Words) -> Words:
    """The first words mixed with the second ones; its own inverse."""
    mixed = second.view(np.uint64) * MULTIPLIER
    words: Words = (first.view(np.uint64) ^ (mixed ^ (mixed >> np.uint64(32)))).view(np.int64)
    return words


def _plain(column: pa.Array | pa.ChunkedArray, arrow: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    column = plain(column)
    if column.null_count:
        raise ValueError("a key column holds NULL")
    return column if column.type == arrow else column.cast(arrow)


def as_numbers(array: pa.Array) -> Words:
    """The values of a column of integers, dates, times or timestamps as 64-bit numbers."""
    kind = array.type
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        array = array.view(pa.int64())
    words: Words = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return words


def _raw(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The values' bytes: a row per value, as wide as the type."""
    if pa.types.is_boolean(array.type):
        flags: npt.NDArray[np.uint8] = array.to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1)
        return flags
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8, width * len(array), width * array.offset)
    return data.reshape(len(array), width)


def _bytes_of(array: pa.Array) -> ColumnBytes:
    """The values' bytes."""
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        raw = _raw(array)
        return ColumnBytes.of_width(np.ascontiguousarray(raw).reshape(-1), raw.shape[1])
    if not len(array):
        return ColumnBytes.of_width(np.zeros(0, np.uint8), 1)
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    data = array.buffers()[2]
    text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return ColumnBytes(text, offsets - offsets[0])
