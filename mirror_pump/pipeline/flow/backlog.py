"""Tells background work whether changes wait in the stream that it should make way for.

Merges, conversions and the first key index of a table take the cores that would bring the lake up to date sooner, and
each of them is as useful a few seconds later. So none begins while the frontier is known to be behind: before it has
reached the end of the WAL as of the session's start, while batches come in that are full, and until a batch of many
tables is published, since their deletes and small files would be tidied up beside it. But a stream that never
catches up must not keep them away for ever, since readers pay for what they would tidy up: PATIENCE bounds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mirror_pump.model import Lsn

PATIENCE = 10.0
"""Seconds for which background work makes way for one backlog."""


class Backlog:
    """The backlog of one session. Thread-safe."""

    def __init__(self, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._frontier = self._expected = Lsn(0)
        self._since = 0.0

    def expect(self, end: Lsn) -> None:
        """Changes are on their way up to this position: too many for one batch, of many tables, or of unknown
        number."""
        with self._lock:
            if not self._is_behind:
                self._since = self._clock()
            self._expected = max(self._expected, end)

    def reached(self, frontier: Lsn) -> None:
        """Everything up to this position is published."""
        with self._lock:
            self._frontier = max(self._frontier, frontier)

    @property
    def remains(self) -> bool:
        """Whether an expected position is not reached yet."""
        with self._lock:
            return self._is_behind

    @property
    def comes_first(self) -> bool:
        """Whether background work should not begin now."""
        with self._lock:
            return self._is_behind and self._clock() - self._since < self._patience

    @property
    def _is_behind(self) -> bool:
        return self._frontier < self._expected
