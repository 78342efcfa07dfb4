"""Keeps large values in a file without a name instead of in memory.

A value is pickled, and its arrays (numpy's and Arrow's, which pickle passes by reference) go into the file, which is
mapped into memory. The value that is made of them again is used like the original: the system reads what is looked at,
and `release_spilled` lets it forget that again. The file ends with the last value that is in it, or with the process,
however that ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
import threading
from typing import IO, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")

_FIRST_PIECE, _LARGEST_PIECE = 1 << 20, 64 << 20
"""Bytes that the file grows by: it doubles. Each piece is a mapping, of which a process can have some 65,000."""
_ALIGNMENT = 64
"""Arrow's."""

_pieces: WeakSet[mmap.mmap] = WeakSet()
_pieces_lock = threading.Lock()


def release_spilled() -> None:
    """Nothing that was looked at has to stay in memory. Safe at any time and from any thread: it is read again."""
    with _pieces_lock:
        pieces = list(_pieces)
    for piece in pieces:
        piece.madvise(mmap.MADV_DONTNEED)


class Spill:
    """Values that belong together. The first ones, up to `kept_bytes`, stay in memory. Thread-safe."""

    def __init__(self, kept_bytes: int) -> None:
        self._room = kept_bytes
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._piece: mmap.mmap | None = None
        self._begin = self._used = 0
        """Where the piece begins in the file, and bytes of it in use."""

    def stored(self, value: Value, nbytes: int) -> Value:
        """The value itself, or an equal one whose arrays are in the file. `nbytes`: about its size. If there is no room
        on the disk, the value stays in memory."""
        with self._lock:
            self._room -= nbytes
            if self._room >= 0:
                return value
            buffers: list[pickle.PickleBuffer] = []
            pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
            try:
                views = self._written([buffer.raw() for buffer in buffers])
            except OSError:
                # Tried again with the next value, in the next piece: room comes and goes.
                return value
        stored: Value = pickle.loads(pickled, buffers=views)  # noqa: S301 - pickled above
        return stored

    def _written(self, buffers: list[memoryview]) -> list[memoryview]:
        """Views of the file with the buffers' content. Raises OSError."""
        ends = [0]
        for buffer in buffers:
            ends.append(ends[-1] + -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT)
        if self._piece is None or self._used + ends[-1] > len(self._piece):
            self._grow(ends[-1])
        assert self._piece is not None
        assert self._file is not None
        base, self._used = self._used, self._used + ends[-1]
        for begin, buffer in zip(ends, buffers, strict=False):
            # Not by the mapping, where a disk that is full would end the process.
            remaining, place = buffer.cast("B"), self._begin + base + begin
            while remaining:
                written = os.pwrite(self._file.fileno(), remaining, place)
                remaining, place = remaining[written:], place + written
        whole = memoryview(self._piece)
        return [
            whole[base + begin : base + begin + buffer.nbytes] for begin, buffer in zip(ends, buffers, strict=False)
        ]

    def _grow(self, least: int) -> None:
        """Begins another piece, for all of which the disk has room."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as this object
        begin = os.fstat(self._file.fileno()).st_size
        target = max(least, min(max(begin, _FIRST_PIECE), _LARGEST_PIECE))
        size = -(-target // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            if sys.platform == "linux":
                os.posix_fallocate(self._file.fileno(), begin, size)
            else:
                os.ftruncate(self._file.fileno(), begin + size)
        except OSError:
            os.ftruncate(self._file.fileno(), begin)
            raise
        piece = mmap.mmap(self._file.fileno(), size, offset=begin)
        self._piece, self._begin, self._used = piece, begin, 0
        with _pieces_lock:
            _pieces.add(piece)
