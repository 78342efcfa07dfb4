"""The keys of all ingested rows below the cut-line, and where each of these rows is: on disk, in parts by hash.

Memory: one part at a time, some 24 bytes a row divided by the number of parts.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.key_index.key_index import NOWHERE
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, PackedKeys

_PARTS = 64
_SHIFT = np.uint64(58)
"""The upper 6 bits of a product choose one of the 64 parts."""

Places = npt.NDArray[np.int64]


class IngestedKeys:
    """Threads may add keys at the same time. After `finish` there are look-ups only."""

    def __init__(self, directory: str, words: int) -> None:
        """`directory` is for this object's files alone. `words`: the number of words of a packed key."""
        self._paths = [Path(directory) / f"keys-{part}" for part in range(_PARTS)]
        self._width = words + 1
        self._locks = [threading.Lock() for _ in range(_PARTS)]
        self._files = [path.open("ab") for path in self._paths]
        self._in_order: set[int] = set()
        """The parts that are sorted."""
        self.rows = 0

    def add(self, keys: PackedKeys, places: Places) -> None:
        """Adds rows with the places at which they are."""
        parts = _parts_of(keys)
        order = np.argsort(parts, kind="stable")
        rows = np.empty((len(keys), self._width), np.int64)
        rows[:, 0] = keys.first
        if keys.second is not None:
            rows[:, 1] = keys.second
        rows[:, -1] = places
        rows = rows[order]
        limits = np.searchsorted(parts[order], np.arange(_PARTS + 1))
        for part in range(_PARTS):
            if limits[part] < limits[part + 1]:
                content = rows[limits[part] : limits[part + 1]].tobytes()
                with self._locks[part]:
                    self._files[part].write(content)

    def finish(self, workers: int = 1, most: int = 3) -> list[tuple[int, int]]:
        """Ends the files. Returns the places of rows whose key another row has: some pairs, at most `most`. `workers`:
        number of threads."""
        with ThreadPoolExecutor(workers, thread_name_prefix="keys") as pool:
            parts = list(pool.map(lambda part: self._twins(part, most), range(_PARTS)))
        self.rows += sum(rows for rows, _ in parts)
        return [twins for _, found in parts for twins in found][:most]

    def _twins(self, part: int, most: int) -> tuple[int, list[tuple[int, int]]]:
        """The number of rows of one part, and pairs as `finish` returns them."""
        self._files[part].close()
        rows = self._load(part)
        first = np.sort(rows[:, 0])
        if not (first[1:] == first[:-1]).any():
            return len(rows), []
        # Different keys of two words may share the first one.
        rows = rows[np.lexsort(tuple(rows[:, column] for column in reversed(range(self._width - 1))))]
        same = np.flatnonzero((rows[1:, :-1] == rows[:-1, :-1]).all(axis=1))
        return len(rows), [(int(rows[row, -1]), int(rows[row + 1, -1])) for row in same[:most]]

    def find(self, keys: PackedKeys) -> Places:
        """The place of the ingested row of each key; NOWHERE for keys that have none."""
        found = np.full(len(keys), NOWHERE, np.int64)
        parts = _parts_of(keys)
        for part in np.unique(parts):
            wanted = np.flatnonzero(parts == part)
            rows = self._sorted(int(part))
            if len(rows):
                found[wanted] = self._find_in(rows, keys.take(wanted))
        return found

    def close(self) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            with suppress(OSError):
                path.unlink()

    def _find_in(self, rows: npt.NDArray[np.int64], keys: PackedKeys) -> Places:
        found = np.full(len(keys), NOWHERE, np.int64)
        first = rows[:, 0]
        at = np.searchsorted(first, keys.first)
        # Keys of two words that share the first one follow each other: mostly there is one.
        open_ = np.flatnonzero(at < len(first))
        while len(open_):
            open_ = open_[first[at[open_]] == keys.first[open_]]
            equal = np.ones(len(open_), np.bool_)
            if keys.second is not None:
                equal = rows[at[open_], 1] == keys.second[open_]
            found[open_[equal]] = rows[at[open_[equal]], -1]
            open_ = open_[~equal]
            at[open_] += 1
            open_ = open_[at[open_] < len(first)]
        return found

    def _sorted(self, part: int) -> npt.NDArray[np.int64]:
        """One part's rows, by their first words. Sorted when they are first asked for: history that overlaps nothing in
        the lake is never looked up."""
        with self._locks[part]:
            rows = self._load(part)
            if part not in self._in_order:
                rows = rows[np.argsort(rows[:, 0])]
                rows.tofile(self._paths[part])
                self._in_order.add(part)
        return rows

    def _load(self, part: int) -> npt.NDArray[np.int64]:
        return np.fromfile(self._paths[part], np.int64).reshape(-1, self._width)


def _parts_of(keys: PackedKeys) -> npt.NDArray[np.uint8]:
    parts = (keys.first.view(np.uint64) * MULTIPLIER) >> _SHIFT
    return parts.astype(np.uint8)
