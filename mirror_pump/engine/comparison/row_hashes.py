"""Hashes whole rows of Arrow columns to 128 bits without a Python loop, so that two sides can be compared by sums.

A row's hash is a sum over its columns, each seeded by its field ID. NULL adds nothing, so a column that one side lacks
equals a column of NULLs. Values of up to 64 bits are taken as they are. Longer ones become words first: short ones by
inner products with secret weights (mirror_pump.engine.comparison.short_values), long ones as polynomials, with their
length and their parts as coefficients, evaluated modulo the prime 2^61 - 1 at a secret point. Two lanes with separate
secrets make 128 bits. Equal values have equal hashes. Unequal values, even chosen ones, collide only by chance, since
secrets are drawn for each comparison: a polynomial of degree n has at most n roots, so for two texts of a gigabyte the
probability is 2^-34 in each lane. (Modulo 2^64 some texts collide under every secret: the Thue-Morse sequence and its
complement.)
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.engine.comparison.short_values import SHORT, lanes_of, lanes_of_rows
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, as_numbers

Words: TypeAlias = npt.NDArray[np.uint64]

BUCKET_BITS = 12
BUCKETS = 1 << BUCKET_BITS
"""Rows are counted and summed by buckets of their keys, so that a difference is confined to few buckets."""

_WORD = (1 << 64) - 1
_WORD_DIGITS = 18
"""Digits of a decimal that 64 bits can hold."""

_PRIME = (1 << 61) - 1
"""A Mersenne prime: remainders of divisions by it can be computed by shifts."""
_PART_BYTES = 7
"""Bytes of a text in each part: the most that stay below the prime."""
_BLOCK = 256
"""Parts summed at a time: sums of the halves of this many products stay below 2^40."""
_AT_ONCE = 16384
"""Parts multiplied at a time."""


@dataclass(frozen=True)
class HashSecret:
    """Secrets of the hashes of one comparison. Picklable."""

    points: tuple[int, int]
    """The secret point of each lane, below 2^61 - 1."""
    seeds: tuple[int, int]

    @classmethod
    def draw(cls) -> HashSecret:
        return cls((secrets.randbelow(_PRIME), secrets.randbelow(_PRIME)), (secrets.randbits(64), secrets.randbits(64)))


def row_hashes(columns: Mapping[int, pa.Array], rows: int, secret: HashSecret) -> tuple[Words, Words]:
    """Two words for each row. `columns` are by field ID and of equal length. Both sides must have the same types."""
    lanes = (np.zeros(rows, np.uint64), np.zeros(rows, np.uint64))
    for field_id, column in columns.items():
        if column.null_count == rows:
            continue
        valid = _valid(column)
        for lane, values, seed in zip(lanes, _values(plain(column), secret.points), secret.seeds, strict=True):
            hashed = mixed(values ^ np.uint64((seed + field_id * int(MULTIPLIER)) & _WORD))
            lane += hashed if valid is None else np.where(valid, hashed, np.uint64(0))
    return mixed(lanes[0]), mixed(lanes[1])


def buckets_of(first_words: npt.NDArray[np.int64], bits: int = BUCKET_BITS) -> npt.NDArray[np.int64]:
    """The bucket of each packed key, among 2^bits."""
    return (mixed(first_words.view(np.uint64)) >> np.uint64(64 - bits)).astype(np.int64)


def mixed(words: Words) -> Words:
    """A bijection that spreads every bit over all others (splitmix64)."""
    words = words + MULTIPLIER
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= np.uint64(0x94D049BB133111EB)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def _valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    flags: npt.NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return flags


def _values(array: pa.Array, points: tuple[int, int]) -> tuple[Words, Words]:
    """A word per value, for each of the two points; arbitrary words for NULLs."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        whole = pa.concat_arrays([array])
        elements = plain(whole.values)
        offsets, valid = 2 * _offsets(whole), _valid(elements)
        # NULL elements become 0, all others are shifted by one.
        not_null = np.uint64(1) if valid is None else np.repeat(valid, 2)
        first, second = ((_halves(words) + np.uint64(1)) * not_null for words in _values(elements, points))
        lengths = np.diff(offsets)
        return _folded(first, offsets, lengths, points[0]), _folded(second, offsets, lengths, points[1])
    if pa.types.is_struct(kind):
        # A variant, whose parts are NULL only where the whole is: which of them differs is not lost in their sum.
        lanes = [_values(part, points) for part in array.flatten()]
        first, second = (
            functools.reduce(lambda sum_, part: mixed(sum_) + part, words) for words in zip(*lanes, strict=True)
        )
        return first, second
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _of_texts(array, points)
    if pa.types.is_decimal128(kind) and kind.precision <= _WORD_DIGITS:
        halves = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), kind.byte_width * array.offset)
        low, high = halves[0::2], halves[1::2]
        # The upper half only repeats the sign. Should it not, it counts.
        words = low.view(np.uint64) ^ ((high ^ (low >> 63)).view(np.uint64) * MULTIPLIER)
        return words, words
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        raw = np.frombuffer(array.buffers()[1], np.uint8, width * len(array), width * array.offset)
        return _two_words(lanes_of_rows(raw.reshape(len(array), width), _seed(points)))
    words = _exactly(array)
    return words, words


def _of_texts(array: pa.Array, points: tuple[int, int]) -> tuple[Words, Words]:
    """Short texts by inner products, the others as polynomials: which of both depends on nothing but the text."""
    content, offsets = _content(array)
    lengths = np.diff(offsets)
    long = np.flatnonzero(lengths > SHORT)
    if not len(long):
        return _two_words(lanes_of(content, offsets[:-1], lengths, _seed(points)))
    short = np.flatnonzero(lengths <= SHORT)
    words = np.empty((2, len(array)), np.uint64)
    words[:, short] = _two_words(lanes_of(content, offsets[:-1][short], lengths[short], _seed(points)))
    content, offsets = _content(array.take(pa.array(long)))
    parts, places = _packed(content, offsets)
    for lane, point in zip(words, points, strict=True):
        lane[long] = _folded(parts, places, np.diff(offsets), point)
    return words[0], words[1]


def _content(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of texts, and where each begins, with the end of the last."""
    if not len(array):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return content[ends[0] : ends[-1]], ends - ends[0]


def _two_words(lanes: Words) -> tuple[Words, Words]:
    """A word of each two lanes."""
    return lanes[0] ^ mixed(lanes[1]), lanes[2] ^ mixed(lanes[3])


@functools.lru_cache(maxsize=4)
def _seed(points: tuple[int, int]) -> bytes:
    """The secret of the inner products, from that of the polynomials."""
    return b"".join(point.to_bytes(8, "little") for point in points)


def _exactly(array: pa.Array) -> Words:
    """The exact values of types with at most 64 bits."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return _unsigned(array.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_floating(kind):
        # All NaNs become the same value; -0 stays different from 0.
        numbers = array.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)
    return _unsigned(as_numbers(array.fill_null(_zero(kind)) if array.null_count else array))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(0, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)


def _unsigned(numbers: npt.NDArray[Any]) -> Words:
    return numbers.astype(np.int64, copy=False).view(np.uint64)


def _offsets(whole: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = whole.offsets.to_numpy().astype(np.int64)
    return numbers


def _halves(words: Words) -> Words:
    return words.view(np.uint32).astype(np.uint64)


def _packed(content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> tuple[Words, npt.NDArray[np.int64]]:
    """Splits each run of bytes between two offsets into parts, padded with zeros; also returns the parts' offsets."""
    padded = np.concatenate([content, np.zeros(8, np.uint8)])
    windows = np.ndarray(len(content) + 1, np.uint64, padded, strides=(1,))
    counts = -(-np.diff(offsets) // _PART_BYTES)
    begins = np.repeat(offsets[:-1], counts) + _PART_BYTES * _places(counts)
    masks = np.array([(1 << 8 * size) - 1 for size in range(_PART_BYTES + 1)], np.uint64)
    sizes = np.minimum(np.repeat(offsets[1:], counts) - begins, _PART_BYTES)
    return windows[begins] & masks[sizes], np.concatenate([[0], np.cumsum(counts)])


def _folded(parts: Words, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], point: int) -> Words:
    """A word for each run of parts between two offsets: length + part * point + part * point^2 + ... modulo the prime.
    Parts must be below the prime."""
    values = np.zeros(len(lengths), np.uint64)
    counts = np.diff(offsets)
    not_empty, first = counts > 0, np.uint64(point)
    parts = parts[offsets[0] : offsets[-1]]
    # Sums each block, then takes the sums as parts again, whose powers are now a block apart.
    while counts.max(initial=0) > 1:
        blocks = -(-counts // _BLOCK)
        begins = np.repeat(np.cumsum(counts) - counts, blocks) + _BLOCK * _places(blocks)
        parts, counts = _summed(parts, begins, _powers(point)), blocks
        point = pow(point, _BLOCK, _PRIME)
    values[not_empty] = parts
    return mixed(_remainder(_product(values, first) + lengths.astype(np.uint64)))


def _summed(parts: Words, begins: npt.NDArray[np.int64], powers: Words) -> Words:
    """Evaluates the polynomial of the parts from each begin to the next, in portions that fit a core's cache."""
    sizes = np.diff(begins, append=len(parts))
    cuts = np.unique([*np.searchsorted(begins, np.arange(0, len(parts), _AT_ONCE)).tolist(), len(begins)])
    sums = np.empty(len(begins), np.uint64)
    for first, last in pairwise(cuts.tolist()):
        begin = begins[first]
        end = begins[last - 1] + sizes[last - 1]
        products = _product(parts[begin:end], powers[_places(sizes[first:last])])
        within = begins[first:last] - begin
        low, high = np.add.reduceat(products & _LOW, within), np.add.reduceat(products >> _32, within)
        sums[first:last] = _remainder(low + _shifted(high))
    return sums


def _places(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, ... up to each of the counts."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


@functools.lru_cache(maxsize=4)
def _powers(point: int) -> Words:
    return np.array([pow(point, exponent, _PRIME) for exponent in range(_BLOCK)], np.uint64)


_32 = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_29 = np.uint64(29)
_61 = np.uint64(61)
_MODULUS = np.uint64(_PRIME)


def _product(left: Words, right: Words | np.uint64) -> Words:
    """The product modulo the prime, of words below it. Uses that 2^64 is 8 and 2^61 is 1."""
    high, low = left >> _32, left & _LOW
    higher, lower = right >> _32, right & _LOW
    smallest = low * lower
    total = (high * higher) << np.uint64(3)
    total += _shifted(high * lower + low * higher)
    total += smallest & _MODULUS
    total += smallest >> _61
    return _remainder(total)


def _shifted(words: Words) -> Words:
    """2^32 times the words, modulo the prime but only reduced to below 2^62."""
    return ((words << _32) & _MODULUS) + (words >> _29)


def _remainder(words: Words) -> Words:
    """The words modulo the prime."""
    words = (words & _MODULUS) + (words >> _61)
    return np.where(words >= _MODULUS, words - _MODULUS, words)
