"""Writers of one machine take turns at a table: a courtesy that spares them conflicts, and on which nothing depends.

A writer that has just committed has the newest state in memory. One that comes back after a conflict has to read it
first, and loses to the former again and again. So each attempt to commit holds a lock of the table's own directory, for
milliseconds. A writer that does not get it in time commits all the same: the catalog's compare-and-swap decides, as
between writers of several machines.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from mirror_pump.lake.storage import local_path
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.runtime.directory_lock import locked

_LOOKS = Backoff(first=0.001, longest=0.004, jitter=0.75)
"""Between looks whether the lock is free. Random, so that no writer is always later than another."""


def turn(location: str, longest: float) -> AbstractContextManager[None]:
    """Keeps other writers of this machine waiting for the time of the block, if it gets its turn within `longest`
    seconds. `location`: URI of the directory of the table's metadata. In an object store, and on a file system without
    such locks, it does nothing."""
    directory = local_path(location)
    return nullcontext() if directory is None else locked(directory, longest, _LOOKS)
