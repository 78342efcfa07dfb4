"""Keeps leaves of key indexes in files without names instead of in memory.

Each leaf is a file of its own in a directory for temporary files that is on a disk, mapped into memory, and gone with
the leaf or with the process, however that ends. Its room is allocated and written before it is mapped, so that a full
disk is an error here and not a signal later. Pages that were looked at are given back at once: they stay in the
system's page cache, which the system reclaims as it needs to.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_pump.runtime.file_systems import directory_on_disk

_FREE_SHARE = 10
"""One part in this many of the file system stays free, ..."""
_FREE_BYTES = 4 << 30
"""... but no more than this: a tenth of a large disk is not little."""
_MOST_FILES = 512
"""Each takes a file descriptor as long as it is mapped, and many systems give a process 1,024."""


class LeafStore:
    """The files of all key indexes of a pump. Thread-safe."""

    def __init__(self, limit: int, most_files: int = _MOST_FILES) -> None:
        """`limit`: maximum size of all files together, in bytes. It is 0 where no directory is on a disk."""
        self._directory = directory_on_disk() if limit else None
        self.limit = limit if self._directory else 0
        self._most_files = most_files
        self._used = 0
        self._files = 0
        # Reentrant: a file may be released by the garbage collector at any point of its own thread.
        self._lock = threading.RLock()

    @property
    def used(self) -> int:
        """Size of all files in bytes."""
        return self._used

    def stored(self, arrays: Sequence[npt.NDArray[np.int64]]) -> mmap.mmap | None:
        """A mapping with the arrays one behind the other. None if the limits or the disk have no room for them."""
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            if not size or self._used + size > self.limit or self._files >= self._most_files:
                return None
            self._used += size
            self._files += 1
        try:
            piece = _written(arrays, size, self._directory)
        except OSError:
            self._release(size)
            return None
        weakref.finalize(piece, self._release, size)
        return piece

    def _release(self, size: int) -> None:
        with self._lock:
            self._used -= size
            self._files -= 1


def _written(arrays: Sequence[npt.NDArray[np.int64]], size: int, directory: Path | None) -> mmap.mmap:
    """Raises OSError."""
    with tempfile.TemporaryFile(buffering=0, dir=directory) as file:
        if sys.platform == "linux":
            space = os.fstatvfs(file.fileno())
            reserve = min(space.f_blocks * space.f_frsize // _FREE_SHARE, _FREE_BYTES)
            if space.f_bavail * space.f_frsize < size + reserve:
                raise OSError("the disk is almost full")
            os.posix_fallocate(file.fileno(), 0, size)
        for array in arrays:
            remaining = np.ascontiguousarray(array).data.cast("B")
            while remaining:
                remaining = remaining[file.write(remaining) :]
        return mmap.mmap(file.fileno(), size)
