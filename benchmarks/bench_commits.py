"""commits: does a commit get slower as commits accumulate? One small transaction, one publish, five thousand times."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyiceberg.table import StaticTable

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from benchmarks.reading import current, current_snapshot, metadata
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import write_one_by_one
from mirror_pump.pipeline.flow.steps import Step

ROWS = 400_000
"""Rows of its own table, if `read` has not left a larger one: enough for each transaction's delete to find a row."""
COMMITS = 5_000
_WARM_UP = 500
"""Commits before the measured ones: meanwhile the JVM compiles its code, and the history fills up to its limit."""
_WINDOW = 500


@dataclass(frozen=True)
class _MetadataSize:
    """The size of the table's metadata."""

    metadata_bytes: int
    manifests: int
    snapshots: int
    data_files: int
    delete_files: int

    def figures(self, name: str) -> dict[str, float | int | str | bool]:
        return {f"commits.{name}_{key}": value for key, value in vars(self).items()}

    def __str__(self) -> str:
        return (
            f"{self.metadata_bytes / 1000:,.0f} kB, {self.manifests:,} manifests, {self.snapshots:,} snapshots,"
            f" {self.data_files:,} data and {self.delete_files:,} delete files"
        )


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live. The next transaction is written once the frontier has passed the last one."""
    count = options.scaled(COMMITS, 40)
    window = min(_WINDOW, count // 4)
    warm_up = options.scaled(_WARM_UP, 20)
    settings = {**options.settings, "batch_bytes": 1}
    with MeasuredProcess(mirror, "commits", "run", settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        write_one_by_one(mirror, process, warm_up, 1)
        before = _size(mirror)
        began = time.monotonic()
        seconds = write_one_by_one(mirror, process, count, 1)
        after = _size(mirror)
        cpu = process.sampler.cpu(began, began + seconds)
        steps = process.steps()
        peak = process.sampler.peak()
        process.stop()
    commits, batches = _durations(steps)
    if len(commits) < warm_up + count:
        raise BenchmarkFailed(f"{len(commits)} commits for {warm_up + count} transactions")
    commits, batches = commits[warm_up:], batches[warm_up:]
    first, last = statistics.median(commits[:window]), statistics.median(commits[-window:])
    mean_first, mean_last = statistics.fmean(commits[:window]), statistics.fmean(commits[-window:])
    batch_first, batch_last = statistics.median(batches[:window]), statistics.median(batches[-window:])
    figures: dict[str, float | int | str | bool] = {
        "commits.count": count,
        "commits.warm_up": warm_up,
        "commits.window": window,
        "commits.seconds": round(seconds, 1),
        "commits.median_first_ms": round(first, 2),
        "commits.median_last_ms": round(last, 2),
        "commits.growth": round(last / first, 3),
        "commits.mean_first_ms": round(mean_first, 2),
        "commits.mean_last_ms": round(mean_last, 2),
        "commits.mean_growth": round(mean_last / mean_first, 3),
        "commits.medians_ms": " ".join(f"{one:.1f}" for one in _tenths(commits)),
        "commits.batch_median_first_ms": round(batch_first, 2),
        "commits.batch_median_last_ms": round(batch_last, 2),
        **{f"commits.cpu_{role}_s": used for role, used in cpu.items()},
        **before.figures("first"),
        **after.figures("last"),
        **peak.figures("commits"),
    }
    return BenchmarkResult(
        figures,
        (
            Line(f"commits: last {window} of {count:,} to first", f"{last:.1f} ms", f"{first:.1f} ms",
                 f"{last / first:.2f}", "≤ 1.1",
                 f"means {mean_last:.1f} and {mean_first:.1f} ms; with the batch's task {batch_last:.0f} and"
                 f" {batch_first:.0f} ms"),
            Line("commits: metadata at the end", str(after), "", "", "flat",
                 f"after the first {warm_up}: {before}"),
            Line("commits: memory", str(peak)),
        ),
    )  # fmt: skip


def _size(mirror: BenchmarkMirror) -> _MetadataSize:
    location, _ = current(mirror)
    content = metadata(location)
    _, summary = current_snapshot(content)
    table = StaticTable.from_metadata(location)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return _MetadataSize(
        Path(url2pathname(urlsplit(location).path)).stat().st_size,
        len(snapshot.manifests(table.io)),
        len(content["snapshots"]),
        int(summary.get("total-data-files", "0")),
        int(summary.get("total-delete-files", "0")),
    )


def _tenths(values: list[float]) -> list[float]:
    """The median of each tenth, in order."""
    step = max(1, len(values) // 10)
    return [statistics.median(values[at : at + step]) for at in range(0, step * 10, step) if values[at : at + step]]


def _durations(steps: list[Taken]) -> tuple[list[float], list[float]]:
    """Milliseconds of each batch: of its commit (from all files written to published), and since it was received."""
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
