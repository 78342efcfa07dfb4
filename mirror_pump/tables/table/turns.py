"""Writers of one machine take turns at a table: a courtesy that spares them conflicts, and on which nothing depends.

A writer that has just committed has the newest state in memory. One that comes back after a conflict has to read it
first, and loses to the former again and again. So each attempt to commit holds a lock (flock(2)) of the table's own
directory, for milliseconds. A writer that does not get it in time commits all the same: the catalog's compare-and-swap
decides, as between writers of several machines. A process that dies leaves no lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirror_pump.lake.storage import local_path
from mirror_pump.runtime.backoff import Backoff

_LOOKS = Backoff(first=0.001, longest=0.004, jitter=0.75)
"""Between looks whether the lock is free. Random, so that no writer is always later than another."""


@contextmanager
def turn(location: str, longest: float) -> Iterator[None]:
    """Keeps other writers of this machine waiting for the time of the block, if it gets its turn within `longest`
    seconds. `location`: URI of the directory of the table's metadata. In an object store, and on a file system without
    such locks, it does nothing."""
    directory = local_path(location)
    descriptor = None if directory is None else _locked(directory, longest)
    try:
        yield
    finally:
        if descriptor is not None:
            # Not by closing alone: a process that was forked meanwhile has the lock, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(directory: Path, longest: float) -> int | None:
    """The directory, open and locked; None without the lock."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    deadline = time.monotonic() + longest
    looks = 0
    with suppress(OSError):
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                break
            looks += 1
            time.sleep(_LOOKS.shortened(_LOOKS.pause(looks)))
        else:
            return descriptor
    os.close(descriptor)
    return None


def _try_lock(descriptor: int) -> bool:
    """Locks what is open there. False if another process has; raises OSError where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
