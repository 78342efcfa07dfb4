"""The key index: an exact map from packed keys to the places of their live rows, in 16 or 24 bytes a row.

It consists of sorted arrays, as in a log-structured merge tree: `leaves` are disjoint ranges of keys in order, `recent`
are small runs of keys that came later. Every key has exactly one entry. When a key's row moves, its entry is changed
in place. A removed key keeps its entry, without a place, until its leaf is rewritten; once such entries are many, all
leaves are rewritten. Not thread-safe.

With a LeafStore, the leaves are in files instead of in memory, and all else is the same: a leaf has the same entries
wherever it is. A leaf for which there is no room in files stays in memory, and counts there.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import PackedKeys, stable_order

Places: TypeAlias = npt.NDArray[np.int64]
"""File number times 2^32, plus the row's position in the file; NOWHERE for no row."""

NOWHERE = -1
POSITION_BITS = 32

_RECENT_SHARE = 8
"""Recent runs may also hold one entry per this many in the leaves, which bounds how often an entry is copied."""
_GONE_SHARE = 4
"""Share of entries of removed keys that triggers a rewrite: more than `recent_entries` plus one per this many keys
present. This bounds how often an entry is copied, and keeps memory proportional to the keys present."""
_FANOUT = 4
"""A recent run is merged with its predecessor unless the predecessor is at least this many times larger."""


def place_of(files: int | npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Places:
    """Places of rows, all in one file or each in its own."""
    return positions + (files << POSITION_BITS)


def files_of(places: Places) -> npt.NDArray[np.int64]:
    """File number of each place."""
    return places >> POSITION_BITS


def positions_of(places: Places) -> npt.NDArray[np.int64]:
    """Position of each place within its file."""
    return places & ((1 << POSITION_BITS) - 1)


@dataclass(frozen=True)
class _Run:
    """Entries ordered by the first words of their keys, each key once. Places may change, keys do not."""

    keys: PackedKeys
    places: Places
    mapped: mmap.mmap | None = None
    """The file that has the entries. None: they are in memory."""

    @property
    def nbytes(self) -> int:
        """Size of the entries in bytes."""
        return self.keys.nbytes + int(self.places.nbytes)

    @cached_property
    def least(self) -> np.int64:
        """The first word of the first key."""
        return np.int64(self.keys.first[0])

    def release(self) -> None:
        """Gives the pages of the file back that were looked at."""
        if self.mapped is not None:
            self.mapped.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def twins(self) -> int:
        """The largest number of entries that share a first word."""
        first = self.keys.first
        most, run = 1, np.flatnonzero(first[1:] == first[:-1])
        while len(run):
            most += 1
            run = run[np.isin(run + 1, run)]
        return most

    def __len__(self) -> int:
        return len(self.places)

    def slots(self, keys: PackedKeys) -> npt.NDArray[np.int64]:
        """Index of each key's entry in this run, -1 for a key without one."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        candidates = np.searchsorted(self.keys.first, keys.first)
        result = np.full(len(keys), -1, np.int64)
        for _ in range(self.twins):
            inside = np.minimum(candidates, len(self) - 1)
            equal = (candidates < len(self)) & (self.keys.first[inside] == keys.first)
            if self.keys.second is not None and keys.second is not None:
                equal &= self.keys.second[inside] == keys.second
            result[equal] = candidates[equal]
            candidates = candidates + 1
        return result


@dataclass
class KeyIndex:
    """The key index of one table. All keys passed to one call of `put` must be distinct."""

    words: int
    """Words of a packed key."""
    alive: int = 0
    """Number of keys that have a place."""
    leaf_entries: int = field(default=1 << 19, kw_only=True)
    """Entries of a leaf after a split. A leaf always has fewer than twice as many."""
    recent_entries: int = field(default=1 << 16, kw_only=True)
    """Recent runs may hold at least this many entries before they are merged into the leaves."""
    store: LeafStore | None = field(default=None, kw_only=True)
    """Where leaves are kept. None: in memory."""
    _leaves: list[_Run] = field(default_factory=list)
    _recent: list[_Run] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays in bytes."""
        return sum(run.nbytes for run in (*self._leaves, *self._recent) if run.mapped is None)

    @property
    def disk_bytes(self) -> int:
        """Size of its files in bytes."""
        return sum(run.nbytes for run in self._leaves if run.mapped is not None)

    def spill(self, store: LeafStore) -> None:
        """Moves the leaves into files, one after the other, as those that come later."""
        self.store = store
        for number, leaf in enumerate(self._leaves):
            self._leaves[number] = self._placed(leaf)

    def _placed(self, leaf: _Run) -> _Run:
        """The leaf in a file, if leaves are kept in files and there is room."""
        if self.store is None or leaf.mapped is not None:
            return leaf
        words = [leaf.keys.first] if leaf.keys.second is None else [leaf.keys.first, leaf.keys.second]
        piece = self.store.stored([*words, leaf.places])
        if piece is None:
            return leaf
        columns = np.frombuffer(piece, np.int64).reshape(len(words) + 1, len(leaf))
        placed = _Run(PackedKeys(columns[0], columns[1] if len(words) > 1 else None), columns[-1], piece)
        # Looked up for every batch: kept, so that the page of it is not.
        _ = placed.least
        placed.release()
        return placed

    def __len__(self) -> int:
        return sum(map(len, self._leaves)) + sum(map(len, self._recent))

    def find(self, keys: PackedKeys) -> Places:
        """Each key's place, NOWHERE for keys without one."""
        places = np.full(len(keys), NOWHERE, np.int64)
        for run, rows, slots in self._located(keys):
            places[rows] = run.places[slots]
        return places

    def put(self, keys: PackedKeys, places: Places) -> None:
        """Sets each key's place; NOWHERE removes the key."""
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
        """Moves keys whose place is still `old` to `new`. Keys that have moved since stay as they are."""
        for run, rows, slots in self._located(keys):
            unmoved = run.places[slots] == old[rows]
            run.places[slots[unmoved]] = new[rows[unmoved]]

    def adopt(self, keys: PackedKeys, new: Places, gone: npt.NDArray[np.bool_]) -> None:
        """Gives the `new` place to keys whose place is in one of the `gone` files (a mask by file number)."""
        for run, rows, slots in self._located(keys):
            old = run.places[slots]
            lost = (old >= 0) & gone[files_of(np.maximum(old, 0))]
            run.places[slots[lost]] = new[rows[lost]]

    def any_in(self, files: npt.NDArray[np.bool_]) -> bool:
        """Whether any key's place is in one of these files (a mask by file number). Scans every entry."""
        for run in (*self._leaves, *self._recent):
            places = run.places[run.places >= 0]
            run.release()
            if files[files_of(places)].any():
                return True
        return False

    def _located(self, keys: PackedKeys) -> Iterator[tuple[_Run, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """For each run that holds some of the keys: the run, the indexes of these keys, and their entries in it."""
        if not len(keys):
            return
        for run in self._recent:
            yield from _hits(run, keys, None)
        if not self._leaves:
            return
        # Sorted keys are searched for one after the other, so neighbours share most of the path and the CPU cache.
        order = stable_order(keys.first)
        keys = keys.take(order)
        limits = np.searchsorted(keys.first, [leaf.least for leaf in self._leaves[1:]])
        for leaf, begin, end in zip(self._leaves, [0, *limits], [*limits, len(keys)], strict=True):
            if begin < end:
                yield from _hits(leaf, keys.take(slice(begin, end)), order[begin:end])
                leaf.release()

    def _settle(self) -> None:
        """Merges recent runs of similar size, and merges all of them into the leaves once they have become large."""
        recent = self._recent
        while len(recent) > 1 and len(recent[-2]) < _FANOUT * len(recent[-1]):
            last = recent.pop()
            recent[-1] = _sorted([recent[-1], last], self.words)
        rewrite_all = len(self) - self.alive > self.recent_entries + self.alive // _GONE_SHARE
        most = max(self.recent_entries, sum(map(len, self._leaves)) // _RECENT_SHARE)
        if self.store is not None:
            most = min(most, max(self.recent_entries, self.leaf_entries))
        if rewrite_all or sum(map(len, recent)) > most:
            self._recent = []
            self._merge(_alive(_sorted(recent, self.words)), everywhere=rewrite_all)

    def _merge(self, new: _Run, *, everywhere: bool) -> None:
        """Merges a run's entries into the leaves. Leaves without new entries stay as they are, unless `everywhere` is
        set: then all leaves lose the entries of removed keys.

        Old leaves are released one by one as new ones are built, so the index is never in memory twice.
        """
        if not self._leaves:
            self._leaves = [self._placed(leaf) for leaf in _split(new, self.leaf_entries)]
            return
        limits = np.searchsorted(new.keys.first, [leaf.least for leaf in self._leaves[1:]])
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
            # Little of a leaf may remain, so small neighbours are joined.
            if sum(map(len, small)) >= self.leaf_entries:
                self._add(small)
        self._add(small)

    def _add(self, runs: list[_Run]) -> None:
        """Turns neighbouring runs, whose keys follow those of all leaves, into leaves, and empties the list."""
        if runs:
            run = runs[0] if len(runs) == 1 else _sorted(runs, self.words)
            self._leaves += (self._placed(leaf) for leaf in _split(run, self.leaf_entries))
            runs.clear()


def _hits(
    run: _Run, keys: PackedKeys, rows: npt.NDArray[np.int64] | None
) -> Iterator[tuple[_Run, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    slots = run.slots(keys)
    hit = np.flatnonzero(slots >= 0)
    if len(hit):
        yield run, hit if rows is None else rows[hit], slots[hit]


def _sorted(runs: Sequence[_Run], words: int) -> _Run:
    if len(runs) == 1 and (runs[0].keys.first[:-1] <= runs[0].keys.first[1:]).all():
        return runs[0]
    keys = PackedKeys.concatenated([run.keys for run in runs], words)
    places = np.concatenate([np.zeros(0, np.int64), *(run.places for run in runs)])
    # A stable sort detects the sorted runs and merges them.
    order = np.argsort(keys.first, kind="stable")
    return _Run(keys.take(order), places[order])


def _alive(run: _Run) -> _Run:
    alive = run.places >= 0
    return run if alive.all() else _Run(run.keys.take(alive), run.places[alive])


def _split(run: _Run, entries: int) -> Iterator[_Run]:
    """Splits a run into leaves of about this many entries. Keys that share a first word stay together."""
    begin = 0
    while begin < len(run):
        end = len(run)
        if end - begin >= 2 * entries:
            end = int(np.searchsorted(run.keys.first, run.keys.first[begin + entries], "right"))
        # Copied, since a view would keep the whole run in memory.
        part = np.arange(begin, end)
        yield _Run(run.keys.take(part), run.places[part])
        begin = end
