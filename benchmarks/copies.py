"""Copies one table of `bench_lag.mirrored_beside_copies` again and again while a pump runs."""

from __future__ import annotations

import threading
import time

from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import BenchmarkMirror
from mirror_pump.testing.program import ProgramFailed

COPIED_TABLE = "public.copied"
_LONGEST = 1800.0
"""Seconds that one copy may take."""


class Copies:
    """A thread that registers the table and unregisters it once it is live, the first time at `begin`, with no copy
    after `end` (time.monotonic()). It ends with the last one."""

    def __init__(self, mirror: BenchmarkMirror, begin: float, end: float) -> None:
        self._mirror = mirror
        self._begin = begin
        self._end = end
        self._seconds: list[float] = []
        self._failed = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def __enter__(self) -> Copies:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def longest(self) -> float:
        """Seconds of the longest copy, after the end. BenchmarkFailed if one failed."""
        if self._failed or not self._seconds:
            raise BenchmarkFailed(self._failed or "nothing was copied")
        return max(self._seconds)

    def _run(self) -> None:
        self._stopping.wait(max(0.0, self._begin - time.monotonic()))
        while not self._failed and not self._stopping.is_set() and time.monotonic() < self._end:
            began = time.monotonic()
            try:
                self._mirror.program.run("register", COPIED_TABLE, timeout=_LONGEST)
                self._seconds.append(time.monotonic() - began)
                self._mirror.program.run("unregister", COPIED_TABLE, "--drop-lake", timeout=_LONGEST)
            except ProgramFailed as error:
                self._failed = str(error)
