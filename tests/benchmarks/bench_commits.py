"""commits: does a commit get slower as commits pile up? One small transaction, one publish, a thousand times."""

from __future__ import annotations

import statistics
import time

from mirror_pump.pipeline.steps import Step
from tests.benchmarks.outcome import Line, Options, Outcome
from tests.benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from tests.benchmarks.scene import Mirror

ROWS = 100_000
COMMITS = 1_000
_WARM_UP = 100
"""Commits before those that count: the JVM compiles its code meanwhile."""
_WINDOW = 100
_POLL = 0.002
_LONGEST = 30.0
"""Seconds that one commit may take."""

_FRONTIER = "SELECT replicated_lsn FROM modak.cutline WHERE table_id = 'public.acct'::regclass"


def run(mirror: Mirror, options: Options) -> Outcome:
    """The table must be live. The next transaction is written once F has passed the last one."""
    count = options.scaled(COMMITS, 40)
    window = min(_WINDOW, count // 4)
    warm_up = options.scaled(_WARM_UP, 20)
    settings = {**options.settings, "batch_age": 0}
    with MeasuredProcess(mirror, "commits", "run", settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        _write(mirror, process, warm_up + count)
        steps = process.steps()
        peak = process.sampler.peak()
        process.stop()
    commits, batches = _durations(steps)
    if len(commits) < warm_up + count:
        raise BenchmarkFailed(f"{len(commits)} commits for {warm_up + count} transactions")
    commits, batches = commits[warm_up:], batches[warm_up:]
    first, last = statistics.median(commits[:window]), statistics.median(commits[-window:])
    batch_first, batch_last = statistics.median(batches[:window]), statistics.median(batches[-window:])
    figures: dict[str, float | int | str | bool] = {
        "commits.count": count,
        "commits.window": window,
        "commits.median_first_ms": round(first, 2),
        "commits.median_last_ms": round(last, 2),
        "commits.growth": round(last / first, 3),
        "commits.batch_median_first_ms": round(batch_first, 2),
        "commits.batch_median_last_ms": round(batch_last, 2),
        **peak.figures("commits"),
    }
    return Outcome(
        figures,
        (
            Line(f"commits: last {window} of {count:,} to first", f"{last:.1f} ms", f"{first:.1f} ms",
                 f"{last / first:.2f}", "≤ 1.5", f"with the batch's task {batch_last:.0f} and {batch_first:.0f} ms"),
            Line("commits: memory", str(peak)),
        ),
    )  # fmt: skip


def _write(mirror: Mirror, process: MeasuredProcess, count: int) -> None:
    with mirror.connect() as connection:
        for number in range(count):
            with connection.transaction():
                connection.execute("SELECT public.bench_ten(%s, %s)", (number, ROWS))
                # Before the commit record: after it, the position might already be beyond what F will ever be told.
                row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
            assert row is not None
            deadline = time.monotonic() + _LONGEST
            while True:
                published = connection.execute(_FRONTIER).fetchone()
                if published is not None and published[0] is not None and published[0] > row[0]:
                    break
                process.check()
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"commit {number} was not published within {_LONGEST:.0f} s")
                time.sleep(_POLL)


def _durations(steps: list[Taken]) -> tuple[list[float], list[float]]:
    """Milliseconds of each batch: of its commit (from all files written to published), and from received."""
    commits: list[float] = []
    batches: list[float] = []
    received = written = None
    for taken in steps:
        if taken.step is Step.RECEIVED:
            received = taken.at
        elif taken.step is Step.WRITTEN:
            written = taken.at
        elif taken.step is Step.PUBLISHED and received is not None and written is not None:
            commits.append((taken.at - written) * 1000)
            batches.append((taken.at - received) * 1000)
            received = written = None
    return commits, batches
