"""Sums from which the keys of rows that differ can be computed, if these are few beside the number of buckets.

All rows that heap and lake both have cancel out in the differences of the sums. What is left of a bucket with a single
row of one side alone is that row: its hash and its packed key. It is subtracted wherever it counts, which leaves other
buckets with a single row, and so on until nothing is left (an invertible Bloom lookup table: Goodrich and
Mitzenmacher, "Invertible Bloom Lookup Tables"). Rows count in two buckets: that of the key, whose number of rows and
sums of hashes Digest.sums has, and that of the hash, which also tells two versions of a row apart.

What is left of a bucket with more rows looks like a row at times, by chance or because keys were chosen for it. Then
something remains in the end, or the product of hash and key, which is no sum of the rows' parts, gives it away. Without
the keys the rows of unequal buckets have to be read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from mirror_pump.engine.comparison.row_hashes import Words, buckets_of
from mirror_pump.lake.key_index.packed_keys import PackedKeys

_ROUNDS = 100
"""Each round takes all rows that are alone in a bucket. A few dozen are enough for any number that can be computed."""


@dataclass
class KeySums:
    """Sums of one side, modulo 2^64."""

    by_key: Words
    """By bucket of the key: sums of the words of the keys."""
    by_hash: Words
    """By bucket of the row's hash: sums of the hashes' first words, then of the words of the keys."""
    products: np.uint64
    """Sum of the products of the hash's and the key's first words."""

    @classmethod
    def empty(cls, bits: int, words: int) -> Self:
        """Sums of no rows in 2^`bits` buckets, with keys of so many words."""
        by_key, by_hash = (np.zeros((1 << bits, columns), np.uint64, "F") for columns in (words, 1 + words))
        return cls(by_key, by_hash, np.uint64(0))

    def add(self, buckets: npt.NDArray[np.int64], hashes: Words, keys: PackedKeys) -> None:
        """Adds rows. `hashes`: first words, spread evenly."""
        words = _words_of(keys)
        places = _buckets_of_hashes(hashes, len(self.by_hash))
        np.add.at(self.by_hash[:, 0], places, hashes)
        for number, word in enumerate(words):
            np.add.at(self.by_key[:, number], buckets, word)
            np.add.at(self.by_hash[:, 1 + number], places, word)
        self.products += (hashes * words[0]).sum(dtype=np.uint64)

    def include(self, other: KeySums) -> None:
        """Adds the rows of other sums."""
        self.by_key += other.by_key
        self.by_hash += other.by_hash
        self.products += other.products


@dataclass(frozen=True)
class SideKeys:
    """Keys of the rows that one side alone has."""

    heap: PackedKeys
    lake: PackedKeys


def computed_keys(heap: tuple[Words, KeySums], lake: tuple[Words, KeySums]) -> SideKeys | None:
    """The keys of rows that are not in both sides, of the sums of a Digest and the further ones. None if they cannot be
    computed. A key occurs once for each of its rows."""
    sums = heap[0] - lake[0]
    rows = _Rows(
        np.column_stack([sums[:, :2], heap[1].by_key - lake[1].by_key]), heap[1].by_hash - lake[1].by_hash
    ).taken()
    if rows is None or (rows[:, 0] * rows[:, 1] * rows[:, 2]).sum(dtype=np.uint64) != (
        heap[1].products - lake[1].products
    ):
        return None
    if np.setdiff1d(np.flatnonzero(sums.any(axis=1)), buckets_of(rows[:, 2].view(np.int64), _bits(sums))).size:
        return None
    in_heap = rows[:, 0] == _ONE
    return SideKeys(_keys_of(rows[in_heap]), _keys_of(rows[~in_heap]))


_ONE = np.uint64(1)


class _Rows:
    """The differences of sums, without the rows that were taken out of them. A row is a line of words: 1 for one of the
    heap's, -1 for one of the lake's, its hash's first word, and its packed key."""

    def __init__(self, by_key: Words, by_hash: Words) -> None:
        self._by_key = by_key
        """A line of words for each bucket, as of a row."""
        self._by_hash = by_hash

    def taken(self) -> Words | None:
        """All rows; None if they cannot be told apart."""
        taken = [np.zeros((0, self._by_key.shape[1]), np.uint64)]
        for _ in range(_ROUNDS):
            if not self._by_key.any() and not self._by_hash.any():
                return np.concatenate(taken)
            single = np.unique(np.concatenate([self._single_of_keys(), *self._single_of_hashes()]), axis=0)
            if not len(single):
                return None
            signed = np.column_stack([single[:, 0], single[:, :1] * single[:, 1:]])
            np.subtract.at(self._by_key, self._buckets_of(single), signed)
            np.subtract.at(self._by_hash, _buckets_of_hashes(single[:, 1], len(self._by_hash)), signed[:, 1:])
            taken.append(single)
        return None

    def _single_of_keys(self) -> Words:
        counts = self._by_key[:, 0]
        places = np.flatnonzero((counts == _ONE) | (counts == -_ONE))
        lines = self._by_key[places]
        rows: Words = np.column_stack([lines[:, 0], lines[:, :1] * lines[:, 1:]])
        return rows[self._buckets_of(rows) == places]

    def _single_of_hashes(self) -> Iterator[Words]:
        places = np.flatnonzero(self._by_hash.any(axis=1))
        for sign in (_ONE, -_ONE):
            lines = sign * self._by_hash[places]
            rows: Words = np.column_stack([np.full(len(lines), sign), lines])
            in_place = _buckets_of_hashes(lines[:, 0], len(self._by_hash)) == places
            yield rows[in_place & self._by_key[self._buckets_of(rows)].any(axis=1)]

    def _buckets_of(self, rows: Words) -> npt.NDArray[np.int64]:
        return buckets_of(np.ascontiguousarray(rows[:, 2]).view(np.int64), _bits(self._by_key))


def _buckets_of_hashes(hashes: Words, buckets: int) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = (hashes >> np.uint64(65 - buckets.bit_length())).astype(np.int64)
    return places


def _bits(sums: Words) -> int:
    return len(sums).bit_length() - 1


def _words_of(keys: PackedKeys) -> list[Words]:
    return [word.view(np.uint64) for word in (keys.first, keys.second) if word is not None]


def _keys_of(rows: Words) -> PackedKeys:
    words = [np.ascontiguousarray(word).view(np.int64) for word in rows.T[2:]]
    return PackedKeys(words[0], words[1] if len(words) > 1 else None)
