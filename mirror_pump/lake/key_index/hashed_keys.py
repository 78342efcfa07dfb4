"""Hashes keys of any length to 128 bits, many at once.

The hash is multilinear: a key is a vector of 32-bit numbers, which are multiplied by secret 64-bit coefficients and
added up modulo 2^64; the upper 32 bits of the sum are a quarter of the result (Lemire and Kaser, Strongly universal
string hashing is fast, 2014).

*What depends on it.* The keys themselves are never compared. If two keys of a table have one hash, a delete of one
hides the row of the other: data is lost. So the bound is the whole argument, and it must hold for all keys of a table
at once.

*The bound.* Let two keys differ. Then they differ in one number of their vectors, by d, 0 < |d| < 2^32: the columns'
lengths are numbers of the vector, so either a length differs, or two values of equal length differ in a byte, and so in
the number that has it. (Missing numbers are zeros; a length separates "a" from "a" and a zero byte, the empty value
from zeros, and ("a", "bc") from ("ab", "c"). Lengths are below 2^31, as Arrow's are. Bytes are hashed as they are,
whether they are UTF-8 or not. NULL is refused before.) d is 2^a times an odd number, a < 32, so d times its coefficient
is distributed evenly over the multiples of 2^a modulo 2^64, and the difference D of the two sums over a coset of them.
The first coefficient makes the sums themselves even, independently of D, so their upper halves are equal with
probability max(0, 1 - |D| / 2^32). Summed over D's coset, whose step 2^a divides 2^32, that is 2^-32. The quarters have
coefficients of their own: 2^-128 for any two keys, n^2 / 2^129 for any of n keys, 10^-21 for 10^9.

*The coefficients* are SHAKE-128 of the secret, 128 random bits. The bound is over their choice, and holds for keys that
do not depend on it. An attacker who knew hashes, or just their order, could solve for the coefficients, as they could
not with a cryptographic hash. So hashes and their order leave the program's memory nowhere but for temporary files of
its own user: no file of the lake, no row of the catalog, no message may have them, or be ordered by them.

*Who compares.* Only hashes of one process and the tasks that it starts, each time with a new secret: a key index is
never stored, and is built again after a restart. Tasks get the secret with their work. They run the driver's own
program, which executors of a cluster get from it (mirror_pump.engine.spark_runtime.executor_packages), so two versions
of this module never meet. Numbers are taken as little-endian, and integers wrap alike on all machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Words: TypeAlias = npt.NDArray[np.uint64]

_WORD = 8
"""Bytes that are taken at a time, as two numbers of 32 bits."""
_LANES = 4
_ROWS = 16 * 1024
"""Rows at a time: their sums stay in the cache."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class ColumnBytes:
    """The bytes of a column's values, one behind the other."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    """Where each value begins, and behind the last one its end."""

    @classmethod
    def of_width(cls, data: npt.NDArray[np.uint8], width: int) -> ColumnBytes:
        """Values that all have `width` bytes."""
        return cls(data, np.arange(0, len(data) + 1, width, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1


def hashed_words(columns: Sequence[ColumnBytes], secret: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two 64-bit words for each row. `columns`: the key's columns, all of the same number of rows."""
    rows = len(columns[0])
    # Unused bits of the first coefficient make each quarter uniform.
    sums = np.empty((_LANES, rows), np.uint64)
    sums[:] = _coefficients(secret, "start", 1)
    for number, column in enumerate(columns):
        lengths = np.diff(column.offsets)
        longest = -(-int(lengths.max(initial=0)) // _WORD)
        factors = _coefficients(secret, str(number), 1 + 2 * longest)
        # Any eight bytes, also the last ones.
        padded = np.concatenate([column.data, np.zeros(_WORD, np.uint8)])
        words: _Words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))
        for begin in range(0, rows, _ROWS):
            part = slice(begin, begin + _ROWS)
            _add(sums[:, part], words, column.offsets[:-1][part], lengths[part], factors)
    quarters = sums >> _HALF
    first, second = (quarters[0] << _HALF) | quarters[1], (quarters[2] << _HALF) | quarters[3]
    return first.view(np.int64), second.view(np.int64)


def _add(
    sums: _Words, words: _Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], factors: _Words
) -> None:
    """Adds the values of some rows to their sums. The length is a number of the vector, too: so values that differ in
    zero bytes at their ends differ."""
    sums += lengths.astype(np.uint64) * factors[:, :1]
    rows: npt.NDArray[np.int64] | slice = slice(None)
    for place in range((factors.shape[1] - 1) // 2):
        left = lengths - place * _WORD
        if int(left.min(initial=0)) <= 0:
            rows = np.flatnonzero(left > 0)
            if not len(rows):
                return
        left = left[rows]
        values = words[starts[rows] + place * _WORD]
        short = np.flatnonzero(left < _WORD)
        if len(short):
            values[short] &= (np.uint64(1) << (8 * left[short]).astype(np.uint64)) - np.uint64(1)
        low, high = values & _LOW, values >> _HALF
        factor = factors[:, 1 + 2 * place : 3 + 2 * place]
        for lane in range(_LANES):
            sums[lane, rows] += low * factor[lane, 0] + high * factor[lane, 1]


def _coefficients(secret: bytes, purpose: str, count: int) -> _Words:
    """The first numbers of a sequence for each lane."""
    lanes = []
    for lane in range(_LANES):
        stream = hashlib.shake_128(len(secret).to_bytes(2, "little") + secret + f"{purpose}/{lane}".encode())
        lanes.append(np.frombuffer(stream.digest(8 * count), "<u8"))
    return np.stack(lanes)
