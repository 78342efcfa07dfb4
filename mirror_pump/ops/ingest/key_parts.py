"""Packed keys with the places of their rows, on disk, in parts by hash: equal keys are in parts of the same number.

So the keys of one collection are looked up in another part by part, each of which is read once, and what is in memory
does not grow with their number.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_pump.lake.key_index.key_index import Places
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, PackedKeys

PARTS = 64
_SHIFT = np.uint64(58)
"""The upper 6 bits of a product choose one of the 64 parts."""

Rows = npt.NDArray[np.int64]
"""A row for each key: its words, then its place."""


class KeyParts:
    """Threads may add keys at the same time. After `end` parts are only read, each by one thread at a time."""

    def __init__(self, directory: str, name: str, words: int) -> None:
        """`name` begins the names of the files in the directory. `words`: the number of words of a packed key."""
        self.directory = directory
        self.words = words
        self._paths = [Path(directory) / f"{name}-{part}" for part in range(PARTS)]
        self._locks = [threading.Lock() for _ in range(PARTS)]
        self._files = [path.open("ab") for path in self._paths]

    def add(self, keys: PackedKeys, places: Places) -> None:
        """Adds keys with the places of their rows."""
        parts = part_of(keys)
        order = np.argsort(parts, kind="stable")
        rows = np.empty((len(keys), self.words + 1), np.int64)
        rows[:, 0] = keys.first
        if keys.second is not None:
            rows[:, 1] = keys.second
        rows[:, -1] = places
        rows = rows[order]
        limits = np.searchsorted(parts[order], np.arange(PARTS + 1))
        for part in range(PARTS):
            if limits[part] < limits[part + 1]:
                content = rows[limits[part] : limits[part + 1]].tobytes()
                with self._locks[part]:
                    self._files[part].write(content)

    def end(self) -> None:
        """Ends the files. Nothing can be added any more."""
        for file in self._files:
            file.close()

    def load(self, part: int) -> Rows:
        """The rows of a part."""
        return np.fromfile(self._paths[part], np.int64).reshape(-1, self.words + 1)

    def replace(self, part: int, rows: Rows) -> None:
        """Stores a part in another order."""
        rows.tofile(self._paths[part])

    def keys(self, rows: Rows) -> PackedKeys:
        """The keys of rows."""
        return PackedKeys(rows[:, 0], rows[:, 1] if self.words == 2 else None)

    def close(self) -> None:
        """Removes the files."""
        self.end()
        for path in self._paths:
            with suppress(OSError):
                path.unlink()


def part_of(keys: PackedKeys) -> npt.NDArray[np.uint8]:
    """The part that each key belongs to."""
    parts = (keys.first.view(np.uint64) * MULTIPLIER) >> _SHIFT
    return parts.astype(np.uint8)
