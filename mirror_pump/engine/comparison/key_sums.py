"""Sums from which the keys of rows that differ can be computed, if these are few beside the number of buckets.

All rows that heap and lake both have cancel out in the differences of the sums. What is left of a bucket with a single
row of one side alone is that row: its hash and its packed key. It is subtracted wherever it counts, which leaves other
buckets with a single row, and so on until nothing is left (an invertible Bloom lookup table: Goodrich and
Mitzenmacher, "Invertible Bloom Lookup Tables"). Rows count in two buckets: that of the key, whose number of rows and
sums of hashes Digest.sums has, and that of the hash, which also tells two versions of a row apart. Of n rows of which
both sides have versions, and m buckets, n/m is the chance that the two versions of one of them share both buckets.

What is left of a bucket with more rows looks like a row at times, by chance or because keys were chosen for it. Mostly
it is put back: the rows that it is a sum of are taken elsewhere, and it is then left over as a row of the other side,
so that both cancel out. Otherwise something remains in the end, or the sum of the rows' marks gives it away: a mark
depends on hash and key, but is no sum of their parts, and hashes are secret. Without the keys the rows of unequal
buckets have to be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.engine.comparison.row_hashes import Words, buckets_of, mixed
from mirror_pump.lake.key_index.packed_keys import PackedKeys

Places: TypeAlias = npt.NDArray[np.int64]

_MODULUS = 1 << 64
_ROUNDS = 100
"""Each round takes all rows that are alone in a bucket. A few dozen are enough for any number that can be computed."""


@dataclass
class KeySums:
    """Sums of one side, modulo 2^64."""

    by_key: Words
    """By bucket of the key: sums of the words of the keys."""
    by_hash: Words
    """By bucket of the row's hash: number of rows, sums of the hashes' first words, then of the words of the keys."""
    marks: int
    """Sum of the rows' marks."""

    @classmethod
    def empty(cls, bits: int, words: int) -> Self:
        """Sums of no rows in 2^`bits` buckets, with keys of so many words."""
        by_key, by_hash = (np.zeros((1 << bits, columns), np.uint64, "F") for columns in (words, 2 + words))
        return cls(by_key, by_hash, 0)

    def add(self, buckets: Places, hashes: Words, keys: PackedKeys) -> None:
        """Adds rows. `hashes`: first words, spread evenly."""
        words = _words_of(keys)
        places = _buckets_of_hashes(hashes, len(self.by_hash))
        np.add.at(self.by_hash[:, 0], places, np.uint64(1))
        np.add.at(self.by_hash[:, 1], places, hashes)
        for number, word in enumerate(words):
            np.add.at(self.by_key[:, number], buckets, word)
            np.add.at(self.by_hash[:, 2 + number], places, word)
        self.marks += _sum_of(_marks(hashes, words))

    def include(self, other: KeySums) -> None:
        """Adds the rows of other sums."""
        self.by_key += other.by_key
        self.by_hash += other.by_hash
        self.marks += other.marks


def computed_keys(heap: tuple[Words, KeySums], lake: tuple[Words, KeySums]) -> tuple[PackedKeys, PackedKeys] | None:
    """The keys of rows that the heap alone has, and of those that the lake alone has, once for each row: from the sums
    of a Digest and the further ones of each side. None if they cannot be computed."""
    sums = heap[0] - lake[0]
    by_key = np.column_stack([sums[:, :2], heap[1].by_key - lake[1].by_key])
    rows = _taken(by_key, heap[1].by_hash - lake[1].by_hash)
    if rows is None:
        return None
    explained = _buckets_of_keys(rows, len(sums))
    marks = _sum_of(rows[:, 0] * _marks(rows[:, 1], list(rows.T[2:])))
    if (heap[1].marks - lake[1].marks - marks) % _MODULUS or len(
        np.setdiff1d(np.flatnonzero(sums.any(axis=1)), explained)
    ):
        return None
    in_heap = np.ascontiguousarray(rows[:, 0]).view(np.int64) > 0
    return _keys_of(rows[in_heap]), _keys_of(rows[~in_heap])


def _taken(by_key: Words, by_hash: Words) -> Words | None:
    """Takes all rows out of the differences of sums; None if they cannot be told apart. A row is a line of words, as
    those of the sums: 1 for one of the heap's, -1 for one of the lake's, its hash's first word, and its packed key."""
    taken = [np.zeros((0, by_key.shape[1]), np.uint64)]
    for _ in range(_ROUNDS):
        if not by_key.any() and not by_hash.any():
            return _without_cancelled(np.concatenate(taken))
        rows = np.unique(
            np.concatenate([_single(by_key, _buckets_of_keys), _single(by_hash, _buckets_of_rows)]), axis=0
        )
        if not len(rows):
            return None
        signed = np.column_stack([rows[:, 0], rows[:, :1] * rows[:, 1:]])
        np.subtract.at(by_key, _buckets_of_keys(rows, len(by_key)), signed)
        np.subtract.at(by_hash, _buckets_of_rows(rows, len(by_hash)), signed)
        taken.append(rows)
    return None


def _without_cancelled(rows: Words) -> Words:
    """Each row once, with how often the heap has it more often than the lake in place of 1, unless that is 0."""
    parts, numbers = np.unique(rows[:, 1:], axis=0, return_inverse=True)
    balance = np.zeros(len(parts), np.uint64)
    np.add.at(balance, numbers.ravel(), rows[:, 0])
    left: Words = np.column_stack([balance, parts])[balance != 0]
    return left


def _single(sums: Words, buckets_of_rows: Callable[[Words, int], Places]) -> Words:
    """The rows that are alone in a bucket."""
    counts = sums[:, 0]
    places = np.flatnonzero((counts == 1) | (counts == _MODULUS - 1))
    lines = sums[places]
    rows: Words = np.column_stack([lines[:, 0], lines[:, :1] * lines[:, 1:]])
    single: Words = rows[buckets_of_rows(rows, len(sums)) == places]
    return single


def _buckets_of_keys(rows: Words, buckets: int) -> Places:
    return buckets_of(np.ascontiguousarray(rows[:, 2]).view(np.int64), buckets.bit_length() - 1)


def _buckets_of_rows(rows: Words, buckets: int) -> Places:
    return _buckets_of_hashes(rows[:, 1], buckets)


def _buckets_of_hashes(hashes: Words, buckets: int) -> Places:
    places: Places = (hashes >> np.uint64(65 - buckets.bit_length())).astype(np.int64)
    return places


def _marks(hashes: Words, words: Sequence[Words]) -> Words:
    """Of rows with these first words of hashes, and words of keys."""
    marks = hashes
    for word in words:
        marks = mixed(marks + word)
    return marks


def _sum_of(words: Words) -> int:
    return int(words.sum(dtype=np.uint64))


def _words_of(keys: PackedKeys) -> list[Words]:
    return [word.view(np.uint64) for word in (keys.first, keys.second) if word is not None]


def _keys_of(rows: Words) -> PackedKeys:
    words = [np.ascontiguousarray(word).view(np.int64) for word in rows.T[2:]]
    return PackedKeys(words[0], words[1] if len(words) > 1 else None)
