"""Lets background work that nobody waits for stand back while other work needs the machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL = 0.25
"""Seconds between checks of the stop request while waiting."""


class UrgentWork:
    """Whether urgent work is under way. Thread-safe.

    A partition that leaves the heap is copied and compared with all cores. What keeps the lake cheap to read, indexes,
    conversions and merges, would take half of them meanwhile, and reads the same files. It begins afterwards, or after
    `longest` seconds: a large partition takes longer than the files of other tables may wait.
    """

    def __init__(self, *, longest: float = 30.0, apart: float = 1.0) -> None:
        """`apart`: seconds between two pieces of urgent work that count as one."""
        self._longest = longest
        self._apart = apart
        self._changed = threading.Condition()
        self._pieces = 0
        self._ended_at = -apart

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """The block is urgent work."""
        with self._changed:
            self._pieces += 1
        try:
            yield
        finally:
            with self._changed:
                self._pieces -= 1
                self._ended_at = time.monotonic()
                self._changed.notify_all()

    def await_end(self, stopping: Callable[[], bool]) -> None:
        """Returns once no urgent work is under way, at the latest after `longest` seconds, or if `stopping`."""
        until = time.monotonic() + self._longest
        with self._changed:
            while (now := time.monotonic()) < until and not stopping():
                rest = self._longest if self._pieces else self._ended_at + self._apart - now
                if rest <= 0:
                    return
                self._changed.wait(min(rest, until - now, _POLL))
