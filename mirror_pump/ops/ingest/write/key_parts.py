"""Packed keys with the places of their rows, on disk, in parts by hash: equal keys are in parts of the same number.

So the keys of one collection are looked up in another part by part, each of which is read once, and what is in memory
does not grow with their number.
"""

from __future__ import annotations

import os
import tempfile
import threading

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
    """Threads may add keys at the same time. Once all are there, parts are read, each by one thread at a time.

    All parts are in one temporary file, which has no name: it is gone with its process, however that ends. Each
    addition is one piece of it, ordered by parts. Where these begin is in memory: 520 bytes for each addition.
    """

    def __init__(self, words: int) -> None:
        """`words`: the number of words of a packed key."""
        self.words = words
        self._row_bytes = 8 * (words + 1)
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()
        self._rows = 0
        self._limits: list[npt.NDArray[np.int64]] = []
        """Of each addition, the row of the file with which each part begins, and the one after the last."""

    def add(self, keys: PackedKeys, places: Places) -> None:
        """Adds keys with the places of their rows."""
        parts = part_of(keys)
        order = np.argsort(parts, kind="stable")
        rows = np.empty((len(keys), self.words + 1), np.int64)
        rows[:, 0] = keys.first
        if keys.second is not None:
            rows[:, 1] = keys.second
        rows[:, -1] = places
        rows = np.take(rows, order, axis=0)
        limits = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(parts, minlength=PARTS))])
        with self._lock:
            limits += self._rows
            self._rows += len(rows)
            self._limits.append(limits)
        self._write(rows, int(limits[0]))

    def load(self, part: int) -> Rows:
        """The rows of a part."""
        spans = self._spans(part)
        rows = np.empty((sum(last - first for first, last in spans), self.words + 1), np.int64)
        position = 0
        for first, last in spans:
            self._read(rows[position : position + last - first], first)
            position += last - first
        return rows

    def replace(self, part: int, rows: Rows) -> None:
        """Stores a part in another order."""
        position = 0
        for first, last in self._spans(part):
            self._write(rows[position : position + last - first], first)
            position += last - first

    def keys(self, rows: Rows) -> PackedKeys:
        """The keys of rows."""
        return PackedKeys(rows[:, 0], rows[:, 1] if self.words == 2 else None)

    def close(self) -> None:
        """Removes the file."""
        self._file.close()

    def _spans(self, part: int) -> list[tuple[int, int]]:
        """The rows of the file that a part has: the first, and the one after the last, of each addition with any."""
        spans = ((int(limits[part]), int(limits[part + 1])) for limits in self._limits)
        return [(first, last) for first, last in spans if first < last]

    def _write(self, rows: Rows, first: int) -> None:
        content, offset = rows.reshape(-1).view(np.uint8).data, first * self._row_bytes
        while len(content):
            done = os.pwrite(self._file.fileno(), content, offset)
            content, offset = content[done:], offset + done

    def _read(self, rows: Rows, first: int) -> None:
        content, offset = rows.reshape(-1).view(np.uint8).data, first * self._row_bytes
        while len(content):
            done = os.preadv(self._file.fileno(), [content], offset)
            if not done:
                raise OSError("a temporary file has become shorter")
            content, offset = content[done:], offset + done


def part_of(keys: PackedKeys) -> npt.NDArray[np.uint8]:
    """The part that each key belongs to."""
    parts = (keys.first.view(np.uint64) * MULTIPLIER) >> _SHIFT
    return parts.astype(np.uint8)
