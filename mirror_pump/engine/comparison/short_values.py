"""Hashes byte strings of up to SHORT bytes by inner products with secret weights, many at a time.

A string is a vector of 16-bit numbers, padded with zeros, and its length. A lane is the inner product of that vector
with weights below 2^31, as an integer and not modulo anything. Two different vectors differ in some number. Whatever
the other weights are, at most one value of that number's weight makes the two products equal. So a lane is equal for
two different strings, even chosen ones, with a probability of 2^-31, and all four lanes with 2^-124 (such families are
called multilinear: Lemire and Kaser, "Strongly universal string hashing is fast").

Products are computed in floating point, by BLAS, and exactly: a sum of _NUMBERS products stays below 2^53.
"""

from __future__ import annotations

import functools
import hashlib
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]

SHORT = 512
"""Bytes of the longest strings."""
LANES = 4
_NUMBERS = 64
"""16-bit numbers in one inner product: 2^6 * 2^16 * 2^31 = 2^53."""
_SIZES = (0, 64, SHORT)
"""Strings of similar sizes are padded to a common width, that of the longest of them."""
_AT_ONCE = 1 << 16
"""Numbers multiplied at a time, so that they stay in a core's cache."""
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def lanes_of(content: Bytes, begins: Places, lengths: Places, secret: bytes) -> Words:
    """The lanes of the strings that begin at `begins` in `content`: a row for each. `lengths` are at most SHORT."""
    lanes = np.empty((len(begins), LANES), np.uint64)
    content = np.concatenate([content, np.zeros(8, np.uint8)])
    for shorter, longest in pairwise(_SIZES):
        chosen = lengths <= longest
        if shorter:
            chosen &= lengths > shorter
        if chosen.all():
            _fill(lanes, slice(None), content, begins, lengths, secret)
        elif chosen.any():
            places = np.flatnonzero(chosen)
            _fill(lanes, places, content, begins[places], lengths[places], secret)
    return lanes


def lanes_of_rows(rows: Bytes, secret: bytes) -> Words:
    """The lanes of strings that all have the same length, each a row of the matrix."""
    count, width = rows.shape
    lanes = np.empty((count, LANES), np.uint64)
    step = _step(width)
    for first in range(0, count, step):
        lanes[first : first + step] = _products(_padded(rows[first : first + step]), secret)
    return lanes + _of_lengths(np.full(1, width), secret)


def _fill(lanes: Words, places: slice | Places, content: Bytes, begins: Places, lengths: Places, secret: bytes) -> None:
    """Sets the lanes at these places."""
    width = int(lengths.max(initial=0))
    step = _step(width)
    parts = []
    for first in range(0, len(begins), step):
        part = slice(first, first + step)
        parts.append(_products(_gathered(content, begins[part], lengths[part]), secret))
    if parts:
        lanes[places] = np.concatenate(parts) + _of_lengths(lengths, secret)


def _step(width: int) -> int:
    return max(1, 2 * _AT_ONCE // max(width, 1))


def _gathered(content: Bytes, begins: Places, lengths: Places) -> npt.NDArray[np.uint16]:
    """A row of 16-bit numbers for each string. `content` ends with 8 bytes that belong to none."""
    width = int(lengths.max(initial=0))
    if len(begins) > 1 and (lengths == width).all() and (np.diff(begins) == width).all():
        return _padded(content[begins[0] : begins[0] + len(begins) * width].reshape(len(begins), width))
    offsets = 8 * np.arange(-(-width // 8))
    words = np.ndarray(len(content) - 7, np.uint64, content, strides=(1,))
    rows: Words = words[np.minimum(begins[:, None] + offsets, len(words) - 1)]
    rows &= _MASKS[np.clip(lengths[:, None] - offsets, 0, 8)]
    return rows.view(np.uint16)


def _padded(rows: Bytes) -> npt.NDArray[np.uint16]:
    count, width = rows.shape
    padded = np.zeros((count, 8 * -(-width // 8)), np.uint8)
    padded[:, :width] = rows
    return padded.view(np.uint16)


def _products(numbers: npt.NDArray[np.uint16], secret: bytes) -> Words:
    """The inner products with the weights: at most SHORT / 2 / _NUMBERS of less than 2^53 each."""
    weights, _ = _weights(secret)
    lanes = np.zeros((len(numbers), LANES), np.uint64)
    for first in range(0, numbers.shape[1], _NUMBERS):
        part = numbers[:, first : first + _NUMBERS].astype(np.float64)
        lanes += (part @ weights[first : first + part.shape[1]]).astype(np.uint64)
    return lanes


def _of_lengths(lengths: Places, secret: bytes) -> Words:
    _, weights = _weights(secret)
    return lengths.astype(np.uint64)[:, None] * weights


@functools.lru_cache(maxsize=4)
def _weights(secret: bytes) -> tuple[npt.NDArray[np.float64], Words]:
    """Weights of the numbers, by number and lane, and those of the length."""
    drawn = np.frombuffer(hashlib.shake_256(secret).digest((SHORT // 2 + 1) * LANES * 4), np.uint32) >> np.uint32(1)
    weights = drawn.reshape(-1, LANES)
    return weights[1:].astype(np.float64), weights[0].astype(np.uint64)
