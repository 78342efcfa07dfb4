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
_AT_ONCE = 1 << 15
"""Numbers multiplied at a time, so that they stay in a core's cache."""
_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def lanes_of(content: Bytes, begins: Places, lengths: Places, secret: bytes) -> Words:
    """The lanes of the strings that begin at `begins` in `content`: a column for each. `lengths` are at most SHORT."""
    lanes = _of_lengths(lengths, secret)
    # The last strings are shorter than their windows.
    content = np.concatenate([content, np.zeros(SHORT, np.uint8)])
    for shorter, longest in pairwise(_SIZES):
        chosen = (lengths > shorter) & (lengths <= longest)
        if chosen.all():
            lanes += _of_strings(content, begins, lengths, secret)
        elif chosen.any():
            places = np.flatnonzero(chosen)
            lanes[:, places] += _of_strings(content, begins[places], lengths[places], secret)
    return lanes


def lanes_of_rows(rows: Bytes, secret: bytes) -> Words:
    """The lanes of strings that all have the same length, each a row of the matrix."""
    count, width = rows.shape
    padded = np.zeros((count, 8 * -(-width // 8)), np.uint8)
    padded[:, :width] = rows
    lanes = _of_lengths(np.full(count, width), secret)
    lanes += _products(padded.view(np.uint16), secret)
    return lanes


def _of_strings(content: Bytes, begins: Places, lengths: Places, secret: bytes) -> Words:
    """The inner products of the strings without their lengths. A window of `content` begins at each of them."""
    width = 8 * -(-int(lengths.max(initial=0)) // 8)
    # Items of this type are copied as a whole.
    windows = np.ndarray(len(content) - width + 1, np.dtype((np.void, width)), content, strides=(1,))
    masks = _masks(width)
    lanes = np.empty((LANES, len(begins)), np.uint64)
    step = max(1, _AT_ONCE // max(width // 2, 1))
    for first in range(0, len(begins), step):
        part = slice(first, first + step)
        rows = windows[begins[part]].view(np.uint64).reshape(-1, width // 8)
        if lengths[part].min() < width:
            rows &= masks.take(lengths[part], axis=0)
        lanes[:, part] = _products(rows.view(np.uint16), secret)
    return lanes


@functools.lru_cache(maxsize=SHORT // 8 + 1)
def _masks(width: int) -> Words:
    """By length, the words with all bits of a string of so many bytes."""
    sizes = np.arange(width + 1)[:, None] - 8 * np.arange(width // 8)
    masks: Words = _BYTES[np.clip(sizes, 0, 8)]
    return masks


def _products(numbers: npt.NDArray[np.uint16], secret: bytes) -> Words:
    """The inner products with the weights: at most SHORT / 2 / _NUMBERS of less than 2^53 each."""
    weights, _ = _weights(secret)
    count, width = numbers.shape
    lanes = np.zeros((LANES, count), np.int64)
    step = max(1, _AT_ONCE // max(width, 1))
    for top in range(0, count, step):
        rows = slice(top, top + step)
        for first in range(0, width, _NUMBERS):
            part = numbers[rows, first : first + _NUMBERS].astype(np.float64)
            products = (part @ weights[first : first + part.shape[1]]).T
            # Assigning converts them on the way, and as signed numbers in half the time.
            lanes[:, rows] = lanes[:, rows] + products.astype(np.int64) if first else products
    return lanes.view(np.uint64)


def _of_lengths(lengths: Places, secret: bytes) -> Words:
    _, weights = _weights(secret)
    return weights[:, None] * lengths.astype(np.uint64)


@functools.lru_cache(maxsize=4)
def _weights(secret: bytes) -> tuple[npt.NDArray[np.float64], Words]:
    """Weights of the numbers, by number and lane, and those of the length."""
    drawn = np.frombuffer(hashlib.shake_256(secret).digest((SHORT // 2 + 1) * LANES * 4), np.uint32) >> np.uint32(1)
    weights = drawn.reshape(-1, LANES)
    return np.ascontiguousarray(weights[1:].astype(np.float64)), weights[0].astype(np.uint64)
