"""lag: 1,000 changes a second in transactions of ten; from each commit until a polling reader sees that F passed it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from mirror_pump.pipeline.steps import Step
from tests.benchmarks.lag_writer import RECORD
from tests.benchmarks.outcome import Line, Options, Outcome, cpu_text
from tests.benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from tests.benchmarks.scene import ROOT, Mirror

ROWS = 1_000_000
SECONDS = 60
_PER_SECOND = 100
"""Transactions, of ten changes each."""
_WARM_UP = 5.0
"""Seconds of the same load before the measured ones."""
_AFTER = 15.0
"""Seconds that the load goes on afterwards at most, until the last measured commit is visible."""
_POLL = 0.005
BATCH_AGE = 0.2
DEFAULT_BATCH_AGE = 1.0

_FRONTIER = "SELECT replicated_lsn FROM modak.cutline WHERE table_id = 'public.acct'::regclass"


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 400_000, 4_000)


def run(mirror: Mirror, options: Options) -> Outcome:
    """At BATCH_AGE, which the figures are for, and at the default age. The table must be live."""
    figures: dict[str, float | int | str | bool] = {}
    lines: list[Line] = []
    first = 0
    ages = [BATCH_AGE, DEFAULT_BATCH_AGE]
    if "batch_age" in options.settings:
        ages = [float(options.settings["batch_age"])]
    for age, name in zip(ages, ("lag", "lag.default"), strict=False):
        settings = {**options.settings, "batch_age": age}
        with MeasuredProcess(mirror, name, "run", settings, profiling=options.profiling) as process:
            process.wait_for(Step.STREAMING)
            lags, begin, end, first = _measure(mirror, process, options, first)
            commits = sum(taken.step is Step.PUBLISHED and begin <= taken.at <= end for taken in process.steps())
            cpu, peak = process.sampler.cpu(begin, end), process.sampler.peak()
            process.stop()
        p50, p99 = (float(value) for value in np.percentile(lags, (50, 99)))
        prefix = "lag." if name == "lag" else "lag.default_"
        figures |= {
            f"{prefix}p50_s": round(p50, 3),
            f"{prefix}p99_s": round(p99, 3),
            f"{prefix}max_s": round(float(lags.max()), 3),
            f"{prefix}batch_age_s": age,
            f"{prefix}commits": commits,
            f"{prefix}changes_per_s": round(len(lags) * 10 / (end - begin)),
        }
        memory = peak.figures("lag" if name == "lag" else "lag_default")
        figures |= memory
        lines += [
            Line(f"lag, batch age {age:g} s", f"p50 {p50:.2f} s, p99 {p99:.2f} s", "", "",
                 "≤ 0.6, ≤ 1.0" if name == "lag" else "", f"{commits} commits; {cpu_text(cpu)}"),
            Line("lag: memory", str(peak)),
        ]  # fmt: skip
    return Outcome(figures, tuple(lines))


def _measure(
    mirror: Mirror, process: MeasuredProcess, options: Options, first: int
) -> tuple[npt.NDArray[np.float64], float, float, int]:
    """Lags in seconds of the transactions between two times, those times, and the next transaction's number."""
    file = mirror.directory / "lag.markers"
    request = {
        "dsn": mirror.dsn,
        "rows": rows_at(options),
        "per_second": _PER_SECOND,
        "first": first,
        "file": str(file),
    }
    writer = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.lag_writer"], stdin=subprocess.PIPE, cwd=ROOT)
    try:
        assert writer.stdin is not None
        writer.stdin.write(orjson.dumps(request))
        writer.stdin.close()
        begin = time.monotonic() + _WARM_UP
        end = begin + max(5.0, SECONDS * options.scale)
        seen_at, frontiers = _poll(mirror, process, file, end)
    finally:
        writer.terminate()
        writer.wait(10)
    committed, targets = _markers(file)
    next_number = first + len(committed)
    measured = (committed >= begin) & (committed < end)
    # The first look at which F had reached the commit's position.
    place = np.searchsorted(np.array(frontiers), targets[measured])
    if not measured.any() or place.max() >= len(frontiers):
        raise BenchmarkFailed("not every commit became visible")
    lags: npt.NDArray[np.float64] = np.array(seen_at)[place] - committed[measured]
    return lags, begin, end, next_number


def _poll(mirror: Mirror, process: MeasuredProcess, file: Path, end: float) -> tuple[list[float], list[int]]:
    """F at each of its changes and when it was seen, until it has passed everything that was committed before `end`."""
    seen_at: list[float] = []
    frontiers: list[int] = []
    target: int | None = None
    with mirror.connect() as connection:
        while True:
            row = connection.execute(_FRONTIER, prepare=True).fetchone()
            now = time.monotonic()
            if row is not None and row[0] is not None and (not frontiers or row[0] > frontiers[-1]):
                seen_at.append(now)
                frontiers.append(row[0])
            if now > end and target is None:
                process.check()
                target = int(_markers(file)[1].max(initial=0))
            if target is not None and frontiers and frontiers[-1] >= target:
                return seen_at, frontiers
            if now > end + _AFTER:
                raise BenchmarkFailed(f"commits were still not visible {_AFTER:.0f} s after the load")
            time.sleep(_POLL)


def _markers(file: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Commit times and positions so far."""
    data = file.read_bytes() if file.exists() else b""
    records = [RECORD.unpack_from(data, at) for at in range(0, len(data) // RECORD.size * RECORD.size, RECORD.size)]
    return np.array([at for at, _ in records]), np.array([lsn for _, lsn in records], np.int64)
