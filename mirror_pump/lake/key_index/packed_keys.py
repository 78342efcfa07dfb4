"""Keys as one or two 64-bit words, so that numpy can compare millions of them: the form that the key index holds.

Keys of fixed width of at most 16 bytes in all (integers, dates, timestamps, uuid, decimals) are packed as they are, and
equal words mean equal keys. Wider ones are hashed to 128 bits by BLAKE2b under a secret of the process, so that nobody
can choose two keys that meet: among 10^9 keys two do with a probability of about 10^-21.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.schema import LakeSchema

Words: TypeAlias = npt.NDArray[np.int64]

_WIDTHS = {
    Kind.BOOLEAN: 1,
    Kind.INT: 4,
    Kind.DATE: 4,
    Kind.LONG: 8,
    Kind.TIME: 8,
    Kind.TIMESTAMP: 8,
    Kind.TIMESTAMPTZ: 8,
    Kind.UUID: 16,
    Kind.DECIMAL: 16,
}
"""Bytes of a value."""
_HASHED = (Kind.STRING, Kind.BINARY)
"""Values of any length."""

_WORD, _MOST = 8, 16
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: spreads neighbouring values over the upper bits of the product. Odd: nothing is lost."""


@dataclass(frozen=True)
class PackedKeys:
    """Some keys, in order: int64 words of one length."""

    first: Words
    second: Words | None
    """None where one word holds a whole key."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.first.nbytes) + (0 if self.second is None else int(self.second.nbytes))

    def take(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice) -> PackedKeys:
        """The keys at these places, or where a mask is true; of a slice a view."""
        return PackedKeys(self.first[places], None if self.second is None else self.second[places])

    @staticmethod
    def concatenated(parts: Sequence[PackedKeys], words: int) -> PackedKeys:
        """All keys of the parts, one part after the other; `words` counts the words of each key."""
        nothing = np.zeros(0, np.int64)
        first = np.concatenate([nothing, *(one.first for one in parts)])
        if words == 1:
            return PackedKeys(first, None)
        return PackedKeys(first, np.concatenate([nothing, *(one.second for one in parts if one.second is not None)]))


@dataclass(frozen=True)
class KeyPacking:
    """How the keys of one table are packed. Picklable: tasks pack, and the loop compares."""

    types: tuple[ColumnType, ...]
    """Of the key columns, in order."""
    secret: bytes
    """Key of the hash, 1 to 64 bytes; keys packed under different ones do not compare."""

    @classmethod
    def of(cls, schema: LakeSchema, secret: bytes) -> Self | None:
        """The packing of a table's keys; None if a key column is of a kind that has none (lists)."""
        types = tuple(field.type for field in schema.key.fields)
        return cls(types, secret) if all(one.kind in _WIDTHS or one.kind in _HASHED for one in types) else None

    @property
    def words(self) -> int:
        """Words of a packed key, 1 or 2."""
        return 1 if self._width is not None and self._width <= _WORD else 2

    @property
    def _width(self) -> int | None:
        """Bytes of a key; None if keys have any length."""
        widths = [_WIDTHS.get(one.kind) for one in self.types]
        known = [one for one in widths if one is not None]
        return sum(known) if len(known) == len(widths) else None

    def pack(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> PackedKeys:
        """Packs the key columns' values, which are of the packing's Arrow types and hold no NULL."""
        arrays = [_plain(column, kind.arrow) for column, kind in zip(columns, self.types, strict=True)]
        if len(arrays) == 1 and self.words == 1:
            return PackedKeys(as_numbers(arrays[0]), None)
        width = self._width
        if width is not None and width <= _MOST:
            digits = np.zeros((len(arrays[0]), _MOST if width > _WORD else _WORD), np.uint8)
            begin = 0
            for array in arrays:
                raw = _raw(array)
                digits[:, begin : begin + raw.shape[1]] = raw
                begin += raw.shape[1]
            return _words(digits.reshape(-1).view(np.int64), self.words)
        return _words(np.frombuffer(b"".join(self._digests(arrays)), np.int64), 2)

    def _digests(self, arrays: Sequence[pa.Array]) -> Iterator[bytes]:
        blake, secret = hashlib.blake2b, self.secret
        rows = zip(*map(_bytes_of, arrays), strict=True)
        if len(arrays) == 1:
            return (blake(value, digest_size=_MOST, key=secret).digest() for (value,) in rows)
        # Lengths before values: ('a', 'bc') and ('ab', 'c') are different keys.
        return (
            blake(
                b"".join(part for value in row for part in (len(value).to_bytes(4, "little"), value)),
                digest_size=_MOST,
                key=secret,
            ).digest()
            for row in rows
        )


def unique_last(keys: PackedKeys) -> npt.NDArray[np.int64]:
    """Places of the keys such that each distinct key is there once, by its last place; ordered by the first word."""
    order, new = _ordered(keys)
    last: npt.NDArray[np.int64] = order[np.append(new, np.ones(min(len(order), 1), np.bool_))]
    return last


def codes_of(keys: PackedKeys) -> tuple[npt.NDArray[np.int64], int]:
    """A number for each key, equal for equal keys, and how many numbers there are."""
    if not len(keys):
        return np.zeros(0, np.int64), 0
    order, new = _ordered(keys)
    codes: npt.NDArray[np.int64] = np.empty(len(order), np.int64)
    codes[order] = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
    return codes, int(codes[order[-1]]) + 1


def _ordered(keys: PackedKeys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The keys' order, equal ones as they came, and of each but the first whether it differs from the one before."""
    if keys.second is None:
        order = np.argsort(keys.first, kind="stable")
        first = keys.first[order]
        return order, first[1:] != first[:-1]
    order = np.lexsort((keys.second, keys.first))
    first, second = keys.first[order], keys.second[order]
    return order, (first[1:] != first[:-1]) | (second[1:] != second[:-1])


def _words(digits: Words, words: int) -> PackedKeys:
    if words == 1:
        return PackedKeys(digits, None)
    # The first word is what is searched for: it takes in the second, so that uuids of one millisecond, which share
    # their first halves, differ in it. The pair still says what the key was.
    second = np.ascontiguousarray(digits[1::2])
    mixed = second.view(np.uint64) * MULTIPLIER
    first = digits[0::2].view(np.uint64) ^ (mixed ^ (mixed >> np.uint64(32)))
    return PackedKeys(first.view(np.int64), second)


def _plain(column: pa.Array | pa.ChunkedArray, arrow: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    column = plain(column)
    if column.null_count:
        raise ValueError("a key column holds NULL")
    return column if column.type == arrow else column.cast(arrow)


def as_numbers(array: pa.Array) -> Words:
    """A column of integers, dates, times or timestamps as 64-bit numbers."""
    kind = array.type
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        array = array.view(pa.int64())
    words: Words = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return words


def _raw(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The values' bytes: one row for each, as wide as the type."""
    if pa.types.is_boolean(array.type):
        flags: npt.NDArray[np.uint8] = array.to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1)
        return flags
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8, width * len(array), width * array.offset)
    return data.reshape(len(array), width)


def _bytes_of(array: pa.Array) -> Iterator[bytes]:
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return iter(array.cast(pa.binary()).to_pylist())
    rows = _raw(array)
    return (row.tobytes() for row in rows)
