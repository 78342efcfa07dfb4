"""lag: 1,000 changes a second in transactions of ten, from each commit until a polling reader sees that the frontier
has passed it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.compactions import Compactions
from benchmarks.lag_writer import RECORD
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import FRONTIER, steady_writer
from mirror_pump.pipeline.flow.steps import Step

ROWS = 1_000_000
SECONDS = 60
_PER_SECOND = 100
"""Transactions, of ten changes each."""
_WARM_UP = 5.0
"""Seconds of the same load before the measured ones."""
_AFTER = 15.0
"""Longest time in seconds that the load continues afterwards, until the last measured commit is visible."""
_POLL = 0.005
BATCH_AGE = 0.2
DEFAULT_BATCH_AGE = 1.0


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 400_000, 4_000)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """Runs at BATCH_AGE, at which the figures are; at the default age; and at BATCH_AGE during a compaction. The table
    must be live."""
    age = float(options.settings.get("batch_age", BATCH_AGE))
    phases = [_Phase("lag", "lag.", age), _Phase("lag_compaction", "lag.compaction_", age, compacting=True)]
    if "batch_age" not in options.settings:
        phases.insert(1, _Phase("lag_default", "lag.default_", DEFAULT_BATCH_AGE))
    figures: dict[str, float | int | str | bool] = {}
    lines: list[Line] = []
    for phase in phases:
        outcome = _run(mirror, options, phase)
        figures |= outcome.figures
        lines += outcome.lines
    return BenchmarkResult(figures, tuple(lines))


@dataclass(frozen=True)
class _Phase:
    name: str
    """The name of the process, also used in the names of its memory figures."""
    prefix: str
    """The prefix of the names of all other figures."""
    batch_age: float
    compacting: bool = False


def _run(mirror: BenchmarkMirror, options: Options, phase: _Phase) -> BenchmarkResult:
    settings = {**options.settings, "batch_age": phase.batch_age}
    with MeasuredProcess(mirror, phase.name, "run", settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        begin = time.monotonic() + _WARM_UP
        end = begin + max(5.0, SECONDS * options.scale)
        with Compactions(mirror, begin, end) if phase.compacting else nullcontext() as compactions:
            lags = _measure(mirror, process, begin, end)
        commits = sum(taken.step is Step.PUBLISHED and begin <= taken.at <= end for taken in process.steps())
        cpu, peak = process.sampler.cpu(begin, end), process.sampler.peak()
        process.stop()
    p50, p99 = (float(value) for value in np.percentile(lags, (50, 99)))
    figures: dict[str, float | int | str | bool] = {
        f"{phase.prefix}p50_s": round(p50, 3),
        f"{phase.prefix}p99_s": round(p99, 3),
        f"{phase.prefix}max_s": round(float(lags.max()), 3),
        f"{phase.prefix}batch_age_s": phase.batch_age,
        f"{phase.prefix}commits": commits,
        f"{phase.prefix}changes_per_s": round(len(lags) * 10 / (end - begin)),
        **peak.figures(phase.name),
    }
    goal = "" if phase.name == "lag_default" else "≤ 0.6, ≤ 1.0"
    what = f"lag, batch age {phase.batch_age:g} s{', compacting' if phase.compacting else ''}"
    lines = [
        Line(what, f"p50 {p50:.2f} s, p99 {p99:.2f} s", "", "", goal, f"{commits} commits; {cpu_text(cpu)}"),
        Line("lag: memory", str(peak)),
    ]
    if compactions is not None:
        done = compactions.done()
        figures |= done.figures()
        lines.append(Line("lag: memory of the compaction", str(done.peak), "", "", "", str(done)))
    return BenchmarkResult(figures, tuple(lines))


def _measure(mirror: BenchmarkMirror, process: MeasuredProcess, begin: float, end: float) -> npt.NDArray[np.float64]:
    """Lags in seconds of the transactions that were committed between two times."""
    file = mirror.directory / "lag.markers"
    with steady_writer(mirror, _PER_SECOND, file):
        seen_at, frontiers = _poll(mirror, process, file, end)
    committed, targets = _markers(file)
    measured = (committed >= begin) & (committed < end)
    # The first poll at which the frontier had reached the commit's position.
    place = np.searchsorted(np.array(frontiers), targets[measured])
    if not measured.any() or place.max() >= len(frontiers):
        raise BenchmarkFailed("not every commit became visible")
    lags: npt.NDArray[np.float64] = np.array(seen_at)[place] - committed[measured]
    return lags


def _poll(mirror: BenchmarkMirror, process: MeasuredProcess, file: Path, end: float) -> tuple[list[float], list[int]]:
    """The frontier at each of its changes and the time when it was seen, until it has passed everything that was
    committed before `end`."""
    seen_at: list[float] = []
    frontiers: list[int] = []
    target: int | None = None
    with mirror.connect() as connection:
        while True:
            row = connection.execute(FRONTIER, prepare=True).fetchone()
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
