"""A lock of a directory among the processes of one machine (flock(2)): a courtesy, on which nothing depends. A process
that dies leaves no lock."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirror_pump.runtime.backoff import Backoff


@contextmanager
def locked(directory: Path, longest: float, looks: Backoff) -> Iterator[None]:
    """Keeps other processes that ask for the lock waiting for the time of the block, if it is free within `longest`
    seconds. Without it, also where the file system has no such locks, the block runs all the same. `looks`: the pauses
    between looks whether it is free."""
    descriptor = _locked(directory, longest, looks)
    try:
        yield
    finally:
        if descriptor is not None:
            # Not by closing alone: a process that was forked meanwhile has the lock, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(directory: Path, longest: float, looks: Backoff) -> int | None:
    """The directory, open and locked; None without the lock."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    deadline = time.monotonic() + longest
    number = 0
    with suppress(OSError):
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                break
            number += 1
            time.sleep(looks.shortened(looks.pause(number)))
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
