"""Where the live row of each key is: an exact map from packed keys to places in data files, in 16 or 24 bytes a row.

Sorted arrays, as in a log-structured merge tree: `leaves` are disjoint ranges of keys in order, `recent` are small runs
of keys that came since. Every key has one entry, wherever it is, and a known key's place is changed in its entry; a
key that is gone keeps its entry, with no place, until its leaf is written anew: all leaves are once such entries have
become many. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.key_index.packed_keys import PackedKeys

Places: TypeAlias = npt.NDArray[np.int64]
"""A file's number times 2^32, plus the row's position in the file; NOWHERE for no row."""

NOWHERE = -1
POSITION_BITS = 32

_LEAF = 1 << 19
"""Entries of a leaf that was split; none has twice as many."""
_RECENT = 1 << 16
"""Entries that recent runs may have at least before they go into the leaves."""
_RECENT_SHARE = 8
"""... and one entry for so many in leaves: what is copied for an entry over its life stays bounded."""
_GONE_SHARE = 4
"""Entries of keys that are gone may be as many, and one for so many keys that are there: each is copied over a bounded
number of times, and what a table takes follows what it holds."""
_FANOUT = 4
"""A recent run is merged with the one before it unless that is so many times larger."""


def place_of(files: int | npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Places:
    """Places of rows: of one file, or of a file for each."""
    return positions + (files << POSITION_BITS)


def files_of(places: Places) -> npt.NDArray[np.int64]:
    """Each place's file number."""
    return places >> POSITION_BITS


def positions_of(places: Places) -> npt.NDArray[np.int64]:
    """Each place's position in its file."""
    return places & ((1 << POSITION_BITS) - 1)


@dataclass(frozen=True)
class _Run:
    """Entries in the order of their keys' first words; no key twice. Places change, keys do not."""

    keys: PackedKeys
    places: Places

    @cached_property
    def twins(self) -> int:
        """The most entries that share a first word."""
        first = self.keys.first
        most, run = 1, np.flatnonzero(first[1:] == first[:-1])
        while len(run):
            most += 1
            run = run[np.isin(run + 1, run)]
        return most

    def __len__(self) -> int:
        return len(self.places)

    def slots(self, keys: PackedKeys) -> npt.NDArray[np.int64]:
        """Each key's entry in this run, -1 for a key that has none."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        found = np.searchsorted(self.keys.first, keys.first)
        result = np.full(len(keys), -1, np.int64)
        for _ in range(self.twins):
            inside = np.minimum(found, len(self) - 1)
            equal = (found < len(self)) & (self.keys.first[inside] == keys.first)
            if self.keys.second is not None and keys.second is not None:
                equal &= self.keys.second[inside] == keys.second
            result[equal] = found[equal]
            found = found + 1
        return result


@dataclass
class KeyIndex:
    """The map. All keys given to one call of `put` are different from each other."""

    words: int
    """Words of a packed key."""
    alive: int = 0
    """Keys that have a place."""
    _leaves: list[_Run] = field(default_factory=list)
    _recent: list[_Run] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(run.keys.nbytes + run.places.nbytes for run in (*self._leaves, *self._recent))

    def __len__(self) -> int:
        return sum(map(len, self._leaves)) + sum(map(len, self._recent))

    def find(self, keys: PackedKeys) -> Places:
        """Each key's place, NOWHERE for those that have none."""
        places = np.full(len(keys), NOWHERE, np.int64)
        for run, rows, slots in self._located(keys):
            places[rows] = run.places[slots]
        return places

    def put(self, keys: PackedKeys, places: Places) -> None:
        """Each key's place from now on; NOWHERE removes it."""
        unknown = np.ones(len(keys), np.bool_)
        for run, rows, slots in self._located(keys):
            self.alive += int(np.count_nonzero(places[rows] >= 0)) - int(np.count_nonzero(run.places[slots] >= 0))
            run.places[slots] = places[rows]
            unknown[rows] = False
        new = np.flatnonzero(unknown & (places >= 0))
        if len(new):
            self.alive += len(new)
            self._recent.append(_sorted([_Run(keys.take(new), places[new])], self.words))
        self._settle()

    def move(self, keys: PackedKeys, old: Places, new: Places) -> None:
        """Keys whose place is still the `old` one get the `new` one; the others have moved on, and stay."""
        for run, rows, slots in self._located(keys):
            still = run.places[slots] == old[rows]
            run.places[slots[still]] = new[rows[still]]

    def adopt(self, keys: PackedKeys, new: Places, gone: npt.NDArray[np.bool_]) -> None:
        """Keys whose place is in a file of the `gone` ones (a mask by file number) get the `new` one."""
        for run, rows, slots in self._located(keys):
            old = run.places[slots]
            lost = (old >= 0) & gone[files_of(np.maximum(old, 0))]
            run.places[slots[lost]] = new[rows[lost]]

    def any_in(self, files: npt.NDArray[np.bool_]) -> bool:
        """Whether any key's place is in one of these files (a mask by file number). Looks at every entry."""
        for run in (*self._leaves, *self._recent):
            places = run.places[run.places >= 0]
            if files[files_of(places)].any():
                return True
        return False

    def _located(self, keys: PackedKeys) -> Iterator[tuple[_Run, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """For each run that has some of the keys: the run, which of the keys, and their entries in it."""
        if not len(keys):
            return
        for run in self._recent:
            yield from _hits(run, keys, None)
        if not self._leaves:
            return
        # Neighbours are searched for one after the other: they share most of the way, and the processor's cache.
        order = np.argsort(keys.first, kind="stable")
        keys = keys.take(order)
        limits = np.searchsorted(keys.first, [leaf.keys.first[0] for leaf in self._leaves[1:]])
        for leaf, begin, end in zip(self._leaves, [0, *limits], [*limits, len(keys)], strict=True):
            if begin < end:
                yield from _hits(leaf, keys.take(slice(begin, end)), order[begin:end])

    def _settle(self) -> None:
        """Merge recent runs of like size, and put them all into the leaves when they have become many."""
        recent = self._recent
        while len(recent) > 1 and len(recent[-2]) < _FANOUT * len(recent[-1]):
            last = recent.pop()
            recent[-1] = _sorted([recent[-1], last], self.words)
        worn = len(self) - self.alive > _RECENT + self.alive // _GONE_SHARE
        if worn or sum(map(len, recent)) > max(_RECENT, sum(map(len, self._leaves)) // _RECENT_SHARE):
            self._recent = []
            self._merge(_alive(_sorted(recent, self.words)), everywhere=worn)

    def _merge(self, new: _Run, *, everywhere: bool) -> None:
        """Puts a run's entries into the leaves. Those that get none stay as they are, unless `everywhere`: then all
        lose the entries of keys that are gone.

        One leaf goes as the next one comes: the whole is never there twice.
        """
        if not self._leaves:
            self._leaves = list(_split(new))
            return
        limits = np.searchsorted(new.keys.first, [leaf.keys.first[0] for leaf in self._leaves[1:]])
        old, self._leaves = self._leaves[::-1], []
        small: list[_Run] = []
        for begin, end in zip([0, *limits], [*limits, len(new)], strict=True):
            leaf = old.pop()
            if begin == end and not everywhere:
                self._add(small)
                self._leaves.append(leaf)
                continue
            part = slice(begin, end)
            small.append(_sorted([_alive(leaf), _Run(new.keys.take(part), new.places[part])], self.words))
            # What is left of a leaf may be next to nothing: its neighbours join it.
            if sum(map(len, small)) >= _LEAF:
                self._add(small)
        self._add(small)

    def _add(self, runs: list[_Run]) -> None:
        """Makes leaves of neighbouring runs, which come after all leaves, and empties the list."""
        if runs:
            self._leaves += _split(runs[0] if len(runs) == 1 else _sorted(runs, self.words))
            runs.clear()


def _hits(
    run: _Run, keys: PackedKeys, rows: npt.NDArray[np.int64] | None
) -> Iterator[tuple[_Run, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    slots = run.slots(keys)
    hit = np.flatnonzero(slots >= 0)
    if len(hit):
        yield run, hit if rows is None else rows[hit], slots[hit]


def _sorted(runs: Sequence[_Run], words: int) -> _Run:
    keys = PackedKeys.concatenated([run.keys for run in runs], words)
    places = np.concatenate([np.zeros(0, np.int64), *(run.places for run in runs)])
    # Stable sorting takes sorted runs as they are and merges them.
    order = np.argsort(keys.first, kind="stable")
    return _Run(keys.take(order), places[order])


def _alive(run: _Run) -> _Run:
    alive = run.places >= 0
    return run if alive.all() else _Run(run.keys.take(alive), run.places[alive])


def _split(run: _Run) -> Iterator[_Run]:
    """Leaves of one run; keys that share a first word stay together."""
    begin = 0
    while begin < len(run):
        end = len(run)
        if end - begin >= 2 * _LEAF:
            end = int(np.searchsorted(run.keys.first, run.keys.first[begin + _LEAF], "right"))
        # Copies: a view would keep the whole run in memory.
        part = np.arange(begin, end)
        yield _Run(run.keys.take(part), run.places[part])
        begin = end
