"""Hashes whole rows of Arrow columns to 128 bits without a Python loop, so that two sides can be compared by sums.

A row's hash is a sum over its columns, each seeded by its field ID; NULL counts for nothing, so that a column which one
side lacks equals one of NULLs. A text's hash is a polynomial in its bytes, with a secret odd base, and its length; two
lanes with different secrets make 128 bits. Equal values have equal hashes; unequal ones meet by chance only, since the
secret is drawn for each comparison.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.columns import plain
from mirror_pump.lake.packed_keys import MULTIPLIER, as_numbers

Words: TypeAlias = npt.NDArray[np.uint64]

BUCKETS = 4096
"""Rows are counted and summed by buckets of their keys, so that a difference is found again in few of them."""

_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class HashSecret:
    """What one comparison's hashes are drawn from. Picklable."""

    base: int
    """Odd: it has an inverse modulo 2^64."""
    seeds: tuple[int, int]

    @classmethod
    def draw(cls) -> HashSecret:
        return cls(secrets.randbits(64) | 1, (secrets.randbits(64), secrets.randbits(64)))


def row_hashes(columns: Mapping[int, pa.Array], rows: int, secret: HashSecret) -> tuple[Words, Words]:
    """Two words for each row. `columns` are by field ID, of one length; those of both sides have the same types."""
    lanes = (np.zeros(rows, np.uint64), np.zeros(rows, np.uint64))
    for field_id, column in columns.items():
        if column.null_count == rows:
            continue
        values, valid = _values(plain(column), secret), _valid(column)
        for lane, seed in zip(lanes, secret.seeds, strict=True):
            hashed = mixed(values ^ np.uint64((seed + field_id * int(MULTIPLIER)) & _WORD))
            lane += hashed if valid is None else np.where(valid, hashed, np.uint64(0))
    return mixed(lanes[0]), mixed(lanes[1])


def buckets_of(first_words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The buckets of packed keys."""
    return (mixed(first_words.view(np.uint64)) >> np.uint64(52)).astype(np.int64)


def mixed(words: Words) -> Words:
    """A bijection that spreads every bit over all (splitmix64)."""
    words = words + MULTIPLIER
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    flags: npt.NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return flags


def _values(array: pa.Array, secret: HashSecret) -> Words:
    """A word for each value; of NULLs any."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        whole = pa.concat_arrays([array])
        elements = plain(whole.values)
        inner = mixed(_values(elements, secret) + np.uint64(1)) if len(elements) else np.zeros(0, np.uint64)
        valid = _valid(elements)
        return _folded(inner if valid is None else np.where(valid, inner, np.uint64(0)), _offsets(whole), secret)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        whole = pa.concat_arrays([array])
        _, offsets, data = whole.buffers()
        numbers = np.frombuffer(offsets, np.int32)[: len(whole) + 1].astype(np.int64)
        bytes_ = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return _folded(bytes_.astype(np.uint64), numbers, secret)
    if pa.types.is_boolean(kind):
        return _unsigned(array.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_floating(kind):
        # All NaNs are one value; -0 is another than 0.
        numbers = array.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        raw = np.frombuffer(array.buffers()[1], np.uint8, width * len(array), width * array.offset)
        words = np.zeros((len(array), -(-width // 8)), np.uint64)
        words.view(np.uint8).reshape(len(array), -1)[:, :width] = raw.reshape(len(array), width)
        folded = np.zeros(len(array), np.uint64)
        for place in range(words.shape[1]):
            folded = mixed(folded ^ words[:, place])
        return folded
    return _unsigned(as_numbers(array.fill_null(_zero(kind)) if array.null_count else array))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(0, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


def _unsigned(numbers: npt.NDArray[Any]) -> Words:
    return numbers.astype(np.int64).view(np.uint64)


def _offsets(whole: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = whole.offsets.to_numpy().astype(np.int64)
    return numbers


def _folded(parts: Words, offsets: npt.NDArray[np.int64], secret: HashSecret) -> Words:
    """For each run of parts between two offsets the polynomial of its parts, and its length."""
    count = len(parts) + 1
    powers = np.full(count, np.uint64(secret.base))
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    inverse = np.full(count, np.uint64(pow(secret.base, -1, 1 << 64)))
    inverse[0] = 1
    np.multiply.accumulate(inverse, out=inverse)
    sums = np.zeros(count, np.uint64)
    np.cumsum((parts + np.uint64(1)) * powers[:-1], out=sums[1:])
    starts, ends = offsets[:-1], offsets[1:]
    lengths = (ends - starts).astype(np.uint64)
    return mixed((sums[ends] - sums[starts]) * inverse[starts] + lengths * MULTIPLIER)
