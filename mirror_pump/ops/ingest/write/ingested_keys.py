"""The keys of all ingested rows below the cut-line, and where each of these rows is: on disk, in parts by hash.

Memory: one part for each thread, some 24 bytes a row divided by the number of parts.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mirror_pump.lake.key_index.key_index import NOWHERE, Places
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.ops.ingest.write.key_parts import PARTS, KeyParts, Rows, part_of


class IngestedKeys:
    """Threads may add keys at the same time. After `finish` there are look-ups only."""

    def __init__(self, words: int) -> None:
        """`words`: the number of words of a packed key."""
        self._parts = KeyParts(words)
        self._locks = [threading.Lock() for _ in range(PARTS)]
        self._in_order: set[int] = set()
        """The parts that are sorted."""
        self.rows = 0

    def add(self, keys: PackedKeys, places: Places) -> None:
        """Adds rows with the places at which they are."""
        self._parts.add(keys, places)

    def finish(self, workers: int = 1, most: int = 3) -> list[tuple[int, int]]:
        """Returns, when all keys are there, the places of rows whose key another row has: some pairs, at most `most`.
        `workers`: number of threads."""
        with ThreadPoolExecutor(workers, thread_name_prefix="keys") as pool:
            parts = list(pool.map(lambda part: self._twins(part, most), range(PARTS)))
        self.rows += sum(rows for rows, _ in parts)
        return [twins for _, pairs in parts for twins in pairs][:most]

    def _twins(self, part: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        """The number of rows of one part, and pairs as `finish` returns them."""
        rows = self._parts.load(part)
        first = np.sort(rows[:, 0])
        if not (first[1:] == first[:-1]).any():
            return len(rows), []
        # Different keys of two words may share the first one.
        rows = rows[np.lexsort(tuple(rows[:, column] for column in reversed(range(self._parts.words))))]
        same = np.flatnonzero((rows[1:, :-1] == rows[:-1, :-1]).all(axis=1))
        return len(rows), [(int(rows[row, -1]), int(rows[row + 1, -1])) for row in same[:most]]

    def find(self, keys: PackedKeys) -> Places:
        """The place of the ingested row of each key; NOWHERE for keys that have none. Reads every part that has one of
        the keys, so ask for few keys, once."""
        places = np.full(len(keys), NOWHERE, np.int64)
        parts = part_of(keys)
        for part in np.unique(parts):
            in_part = np.flatnonzero(parts == part)
            places[in_part] = _find_in(self._sorted(int(part)), keys.take(in_part))
        return places

    def others(self) -> KeyParts:
        """An empty collection of other rows' keys, for `matches`."""
        return KeyParts(self._parts.words)

    def matches(self, others: KeyParts, part: int) -> tuple[Places, Places]:
        """Those of the other rows in a part that have the key of an ingested row: their places, and the ingested row of
        each."""
        rows = others.load(part)
        if not len(rows):
            return rows[:, -1], rows[:, -1]
        places = _find_in(self._sorted(part), others.keys(rows))
        hits = np.flatnonzero(places != NOWHERE)
        return rows[hits, -1], places[hits]

    def close(self) -> None:
        """Removes the temporary file."""
        self._parts.close()

    def _sorted(self, part: int) -> Rows:
        """One part's rows, by their first words. Sorted when they are first asked for: history that overlaps nothing in
        the lake is never looked up."""
        with self._locks[part]:
            rows = self._parts.load(part)
            if part not in self._in_order:
                rows = rows[np.argsort(rows[:, 0])]
                self._parts.replace(part, rows)
                self._in_order.add(part)
        return rows


def _find_in(rows: Rows, keys: PackedKeys) -> Places:
    """The place in the row of each key, of rows ordered by their first words; NOWHERE for keys that have none."""
    places = np.full(len(keys), NOWHERE, np.int64)
    first = np.ascontiguousarray(rows[:, 0])
    at = np.searchsorted(first, keys.first)
    # Keys of two words that share the first one follow each other: mostly there is one.
    open_ = np.flatnonzero(at < len(first))
    while len(open_):
        open_ = open_[first[at[open_]] == keys.first[open_]]
        equal = np.ones(len(open_), np.bool_)
        if keys.second is not None:
            equal = rows[at[open_], 1] == keys.second[open_]
        places[open_[equal]] = rows[at[open_[equal]], -1]
        open_ = open_[~equal]
        at[open_] += 1
        open_ = open_[at[open_] < len(first)]
    return places
