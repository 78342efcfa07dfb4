"""Runs `mirror-pump maintain` repeatedly while a pump runs, each time in a process whose resources are measured."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed
from benchmarks.sampling import Peak, Sampler, parent_of
from benchmarks.scene import BenchmarkMirror

_LONGEST = 300.0
"""Seconds that one process may take."""
_JOURNAL = """
SELECT count(*), coalesce(sum((details -> 'counts' ->> 'rewritten_data_files_count')::bigint), 0)
  FROM modak.op_log
 WHERE op_kind = 'compaction' AND phase = 'done' AND updated_at >= %s AND details ->> 'operation' = 'rewrite_data_files'
"""


@dataclass(frozen=True)
class Done:
    """The results."""

    runs: int
    """Processes that succeeded."""
    longest: float
    """Seconds, including the start of Spark."""
    rewrites: int
    files: int
    """Data files that were replaced."""
    peak: Peak

    def figures(self) -> dict[str, float | int | str | bool]:
        return {
            "lag.compaction_runs": self.runs,
            "lag.compaction_longest_s": round(self.longest, 1),
            "lag.compaction_rewrites": self.rewrites,
            "lag.compaction_rewritten_files": self.files,
            **self.peak.figures("maintain"),
        }

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.longest:.0f} s at most; {self.rewrites} rewrites replaced {self.files:,} files"


class Compactions:
    """A thread that runs them, the first one at `begin`, none after `end` (time.monotonic()). It ends with the last
    one."""

    def __init__(self, mirror: BenchmarkMirror, begin: float, end: float) -> None:
        self._mirror = mirror
        self._begin = begin
        self._end = end
        self._seconds: list[float] = []
        self._peaks: list[Peak] = []
        self._failed = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compactions", daemon=True)

    def __enter__(self) -> Compactions:
        with self._mirror.connect() as connection:
            self._postmaster = parent_of(connection.info.backend_pid)
            row = connection.execute("SELECT now()").fetchone()
            assert row is not None
            self._since = row[0]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def done(self) -> Done:
        """The results, after the end. BenchmarkFailed if a process failed, or if nothing was rewritten and so nothing
        measured."""
        with self._mirror.connect() as connection:
            row: tuple[Any, ...] | None = connection.execute(_JOURNAL, (self._since,)).fetchone()
        assert row is not None
        if self._failed or not self._seconds or not row[1]:
            raise BenchmarkFailed(self._failed or f"no files were compacted in {len(self._seconds)} runs")
        highest = max(self._peaks, key=lambda peak: peak.total)
        return Done(len(self._seconds), max(self._seconds), row[0], int(row[1]), highest)

    def _run(self) -> None:
        self._stopping.wait(max(0.0, self._begin - time.monotonic()))
        while not self._failed and not self._stopping.is_set() and time.monotonic() < self._end:
            began = time.monotonic()
            process = self._mirror.program.start("maintain", TABLE, log="compactions.log")
            sampler = Sampler(process.pid, self._postmaster)
            sampler.start()
            try:
                code = process.wait(_LONGEST)
            except subprocess.TimeoutExpired:
                self._mirror.program.kill(process)
                code = -1
            sampler.stop()
            if code != 0:
                self._failed = f"maintain ended with {code}, see {self._mirror.directory / 'compactions.log'}"
                return
            self._seconds.append(time.monotonic() - began)
            self._peaks.append(sampler.peak())
