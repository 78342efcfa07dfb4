"""A clock that jumps: the time of day in this process, and nowhere else."""

from __future__ import annotations

import time

import pytest


class ShiftedClock:
    """Shifts time.time() and time.time_ns() by `offset` seconds, which a test changes while a pump runs.

    That is the clock of the pump and of its tasks, if they run in threads. PostgreSQL, the file system and Spark's JVM
    keep the right time. time.monotonic() goes on as it does when an administrator sets the clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0.0
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + self.offset)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + round(self.offset * 1e9))
