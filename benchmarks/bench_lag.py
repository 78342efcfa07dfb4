"""lag: 1,000 changes a second in transactions of ten, from each commit until a polling reader sees that the frontier
has passed it, by default settings. lag-s3: the same, with storage that takes 50 ms for each request. lag-tables: the
same, spread over 100 tables. lag-copy: while another table of 10,000,000 rows is copied, beside the same without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from benchmarks.compactions import Compactions
from benchmarks.copies import COPIED_TABLE, Copies
from benchmarks.lag_writer import RECORD
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import NOWHERE_ELSE, BenchmarkFailed, Elsewhere, MeasuredProcess
from benchmarks.s3_process import s3_process
from benchmarks.scene import BenchmarkMirror, BenchmarkScene
from benchmarks.writing import FRONTIER, steady_writer
from mirror_pump.pipeline.flow.steps import Step

ROWS = 1_000_000
SECONDS = 60
_WARM_UP = 5.0
"""Seconds of the same load before the measured ones."""
_POLL = 0.005
_REQUEST_SECONDS = 0.05
"""What each request takes in lag-s3."""
_TABLES = 100
_COPIED_ROWS = 10_000_000
_SHIFTED = "SELECT id + %s, branch, balance, note, updated FROM public.acct"
_PUTS_PER_DOLLAR = 200_000

_HUNDRED_TABLES = """
DO $do$ BEGIN FOR i IN 0..99 LOOP
    EXECUTE format('CREATE TABLE public.part_%s (LIKE public.acct INCLUDING INDEXES)', i);
    EXECUTE format('INSERT INTO public.part_%s SELECT * FROM public.acct WHERE id <= 1000', i);
END LOOP; END $do$;
-- Ten updates in ten tables; the next call takes the next ten.
CREATE FUNCTION public.bench_parts(number bigint, n bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    FOR step IN 0..9 LOOP
        EXECUTE format('UPDATE public.part_%s SET balance = balance + 1 WHERE id = $1', (number * 10 + step) % 100)
          USING 1 + number % 1000;
    END LOOP;
END $$;
"""


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 400_000, 4_000)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """By itself, and during a compaction. The table must be live."""
    phases = (
        Phase("lag", "lag.", "lag", "≤ 0.12, ≤ 0.3"),
        Phase("lag_compaction", "lag.compaction_", "lag, compacting", "p99 ≤ 0.6", compacting=True),
    )
    figures: dict[str, float | int | str | bool] = {}
    lines: list[Line] = []
    for phase in phases:
        outcome = measured(mirror, options, phase)
        figures |= outcome.figures
        lines += outcome.lines
    return BenchmarkResult(figures, tuple(lines))


@contextmanager
def mirrored_in_s3(scene: BenchmarkScene, options: Options) -> Iterator[tuple[BenchmarkMirror, int]]:
    """A mirror whose storage takes _REQUEST_SECONDS for each request, and the process id of that. Its table is live."""
    with (
        s3_process(_REQUEST_SECONDS) as (storage, pid),
        scene.mirror("bench_lag_s3", rows_at(options), storage=storage) as mirror,
    ):
        mirror.program.run("register", TABLE, timeout=1800)
        yield mirror, pid


def run_in_s3(mirror: BenchmarkMirror, storage: int, options: Options) -> BenchmarkResult:
    """`storage`: process id of the S3 server."""
    what = f"lag, {_REQUEST_SECONDS * 1000:.0f} ms a request"
    return measured(mirror, options, Phase("lag_s3", "lag.s3_", what, elsewhere=Elsewhere(storage=storage)))


@contextmanager
def mirrored_tables(scene: BenchmarkScene) -> Iterator[BenchmarkMirror]:
    """A mirror of _TABLES live tables, and of `acct` with a few rows."""

    def fill(connection: psycopg.Connection[Any]) -> None:
        connection.execute(_HUNDRED_TABLES.encode())

    with scene.mirror("bench_lag_tables", 1_000, fill) as mirror:
        mirror.program.run("register", TABLE, *(f"public.part_{number}" for number in range(_TABLES)), timeout=1800)
        yield mirror


def run_tables(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    phase = Phase("lag_tables", "lag.tables_", f"lag, {_TABLES} tables", function="public.bench_parts")
    return measured(mirror, options, phase)


@contextmanager
def mirrored_beside_copies(scene: BenchmarkScene, options: Options) -> Iterator[BenchmarkMirror]:
    """A mirror whose `acct` is live, and COPIED_TABLE of _COPIED_ROWS rows, which is not registered."""
    repeats = options.scaled(_COPIED_ROWS, 400_000, 4_000) // rows_at(options)

    def fill(connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"CREATE TABLE {COPIED_TABLE} (LIKE public.acct INCLUDING INDEXES)".encode())
        for number in range(max(1, repeats)):
            connection.execute(f"INSERT INTO {COPIED_TABLE} {_SHIFTED % (number * rows_at(options))}".encode())

    with scene.mirror("bench_lag_copy", rows_at(options), fill) as mirror:
        mirror.program.run("register", TABLE, timeout=1800)
        yield mirror


def run_beside_copies(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    alone = measured(mirror, options, Phase("lag_alone", "lag.alone_", "lag"))
    beside = measured(mirror, options, Phase("lag_copy", "lag.copy_", "lag, beside a copy", copying=True))
    p99, limit = float(beside.figures["lag.copy_p99_s"]), float(alone.figures["lag.alone_p99_s"])
    ratio = round(p99 / limit, 2)
    line = Line("lag, beside a copy: p99", f"{p99:.2f} s", f"without: {limit:.2f} s", f"{ratio:.2f}", "≤ 2")
    figures = {**alone.figures, **beside.figures, "lag.copy_ratio": ratio}
    return BenchmarkResult(figures, (*alone.lines, *beside.lines, line))


@dataclass(frozen=True)
class Phase:
    """What is measured, and what else happens meanwhile."""

    name: str
    """The name of the process, also used in the names of its memory figures."""
    prefix: str
    """The prefix of the names of all other figures."""
    what: str
    goal: str = ""
    compacting: bool = False
    copying: bool = False
    function: str = "public.bench_ten"
    """Makes the changes of a transaction."""
    per_second: int = 100
    """Transactions."""
    changes: int = 10
    """Of a transaction."""
    after: float = 60.0
    """Longest time in seconds that the load continues afterwards, until the last measured commit is visible."""
    beside: Callable[[BenchmarkMirror, float, float], object] = lambda *_: None
    """Writes what else there is between two times (time.monotonic()), in a thread of its own."""
    elsewhere: Elsewhere = NOWHERE_ELSE


def measured(mirror: BenchmarkMirror, options: Options, phase: Phase) -> BenchmarkResult:
    """The lag of a mirror whose tables are live."""
    with MeasuredProcess(
        mirror, phase.name, "run", options.settings, profiling=options.profiling, elsewhere=phase.elsewhere
    ) as process:
        process.wait_for(Step.STREAMING)
        begin = time.monotonic() + _WARM_UP
        end = begin + max(5.0, SECONDS * options.scale)
        with (
            Compactions(mirror, begin, end) if phase.compacting else nullcontext() as compactions,
            Copies(mirror, begin, end) if phase.copying else nullcontext() as copies,
            ThreadPoolExecutor(1) as pool,
        ):
            beside = pool.submit(phase.beside, mirror, begin, end)
            lags = _measure(mirror, process, begin, end, phase)
            beside.result()
        published = [taken for taken in process.steps() if taken.step is Step.PUBLISHED and begin <= taken.at <= end]
        cpu, peak = process.sampler.cpu(begin, end), process.sampler.peak()
        process.stop()
    commits = len(published)
    per_hour = round(sum(taken.details["files"] for taken in published) * 3600 / (end - begin))
    p50, p99 = (float(value) for value in np.percentile(lags, (50, 99)))
    figures: dict[str, float | int | str | bool] = {
        f"{phase.prefix}p50_s": round(p50, 3),
        f"{phase.prefix}p99_s": round(p99, 3),
        f"{phase.prefix}max_s": round(float(lags.max()), 3),
        f"{phase.prefix}commits": commits,
        f"{phase.prefix}files_per_hour": per_hour,
        f"{phase.prefix}changes_per_s": round(len(lags) * phase.changes / (end - begin)),
        **{f"{phase.prefix}cpu_{role}_s": used for role, used in cpu.items()},
        **peak.figures(phase.name),
    }
    dollars = per_hour / _PUTS_PER_DOLLAR
    remark = f"{commits} commits; {per_hour:,} files an hour, {dollars:.2f} $ as PUTs; {cpu_text(cpu)}"
    lines = [
        Line(phase.what, f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {lags.max():.2f} s", "", "", phase.goal, remark),
        Line("lag: memory", str(peak)),
    ]
    if copies is not None:
        figures[f"{phase.prefix}copy_s"] = longest = round(copies.longest(), 1)
        lines.append(Line(f"{phase.what}: the copy", f"{longest} s"))
    if compactions is not None:
        done = compactions.done()
        figures |= done.figures()
        lines.append(Line("lag: memory of the compaction", str(done.peak), "", "", "", str(done)))
    return BenchmarkResult(figures, tuple(lines))


def _measure(
    mirror: BenchmarkMirror, process: MeasuredProcess, begin: float, end: float, phase: Phase
) -> npt.NDArray[np.float64]:
    """Lags in seconds of the transactions that were committed between two times."""
    file = mirror.directory / "lag.markers"
    with steady_writer(mirror, phase.per_second, file, function=phase.function):
        seen_at, frontiers = _poll(mirror, process, file, end, phase.after)
    committed, targets = _markers(file)
    measured = (committed >= begin) & (committed < end)
    # The first poll at which the frontier had reached the commit's position.
    place = np.searchsorted(np.array(frontiers), targets[measured])
    if not measured.any() or place.max() >= len(frontiers):
        raise BenchmarkFailed("not every commit became visible")
    lags: npt.NDArray[np.float64] = np.array(seen_at)[place] - committed[measured]
    return lags


def _poll(
    mirror: BenchmarkMirror, process: MeasuredProcess, file: Path, end: float, after: float
) -> tuple[list[float], list[int]]:
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
            if now > end + after:
                raise BenchmarkFailed(f"commits were still not visible {after:.0f} s after the load")
            time.sleep(_POLL)


def committed_in(file: Path, begin: float, end: float) -> int:
    """Transactions that a writer has committed between two times."""
    committed, _ = _markers(file)
    return int(((committed >= begin) & (committed < end)).sum())


def _markers(file: Path) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Commit times and positions so far."""
    data = file.read_bytes() if file.exists() else b""
    records = [RECORD.unpack_from(data, at) for at in range(0, len(data) // RECORD.size * RECORD.size, RECORD.size)]
    return np.array([at for at, _ in records]), np.array([lsn for _, lsn in records], np.int64)
