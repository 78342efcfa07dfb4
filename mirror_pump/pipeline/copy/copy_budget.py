"""The bytes per second that copies may read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class CopyBudget:
    """Says how long the next chunk has to wait, so that chunks together read no more bytes per second than they may.

    A chunk is paid for once it is read, since nothing knows its size before. So chunks that are read at the same time
    may be ahead of the budget by their sizes, never by more. Time in which nothing is copied earns nothing. Its methods
    may be called from any thread.
    """

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`bytes_per_second`: 0 for no limit."""
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._paid_at = clock()
        """When all that was read so far is paid for."""

    def spend(self, size: int) -> None:
        """Take note of a chunk of this many bytes that was read."""
        if self._rate:
            with self._lock:
                self._paid_at += size / self._rate

    def wait_seconds(self) -> float:
        """How long the next chunk has to wait; 0 if it may start now."""
        with self._lock:
            now = self._clock()
            self._paid_at = max(self._paid_at, now)
            return self._paid_at - now
