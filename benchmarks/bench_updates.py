"""updates: 1,000 updates of random keys a second on 50,000,000 rows for ten minutes, on a table of each format version:
what does a commit cost in time, objects and bytes?

Only runs if it is named: `make bench ARGS='--only updates'`.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from benchmarks.big_table import (
    COPY_SECONDS,
    LOOK_SECONDS,
    PER_SECOND,
    TABLE,
    UPDATES,
    Look,
    equal,
    look,
    rows_at,
    transactions,
)
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from benchmarks.sampling import PUMP_ROLES
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import steady_writer
from mirror_pump.pipeline.flow.steps import Step

VERSIONS = (2, 3)
SECONDS = 600


class _LakeObjects:
    """The lake's files, by name, with their sizes. Those that are removed meanwhile stay in it, so that their number
    is that of the objects which were written."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._sizes: dict[str, int] = {}

    def look(self) -> None:
        for directory, _, names in os.walk(self._lake):
            for name in names:
                path = f"{directory}/{name}"
                if path not in self._sizes:
                    try:
                        self._sizes[path] = Path(path).stat().st_size
                    except FileNotFoundError:
                        continue

    def since(self, before: frozenset[str]) -> dict[str, tuple[int, int]]:
        """The number and the bytes of files that are not in `before`, by what they are."""
        kinds: dict[str, tuple[int, int]] = {}
        for path, size in self._sizes.items():
            if path not in before:
                kind = "metadata" if "/metadata/" in path else "vectors" if path.endswith(".puffin") else "rows"
                count, total = kinds.get(kind, (0, 0))
                kinds[kind] = (count + 1, total + size)
        return kinds

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._sizes)


def run(version: int, mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    rows = rows_at(options)
    began = time.monotonic()
    mirror.program.run("register", TABLE, "--format-version", str(version), timeout=COPY_SECONDS)
    copied = time.monotonic() - began
    markers = mirror.directory / "updates.markers"
    written = _LakeObjects(mirror.directory / "lake")
    with MeasuredProcess(mirror, "updates", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        written.look()
        before = written.paths
        with steady_writer(mirror, PER_SECOND, markers, 0, UPDATES, rows):
            begin = time.monotonic()
            end = begin + max(20.0, SECONDS * options.scale)
            looks = _watch(mirror, process, written, end)
        mirror.program.run("wait", "--now", "--timeout", "300")
        done = time.monotonic()
        written.look()
        cpu, peak = process.sampler.cpu(begin, done), process.sampler.peak(begin)
        steps = process.steps()
        same = equal(mirror)
        process.stop()
    commits = [one for one in _commits(steps) if begin <= one[0] <= done]
    if len(commits) < 10:
        raise BenchmarkFailed(f"{len(commits)} commits")
    tenth = max(1, len(commits) // 10)
    milliseconds = [spent for _, spent in commits]
    first, last = statistics.median(milliseconds[:tenth]), statistics.median(milliseconds[-tenth:])
    kinds = written.since(before)
    objects = sum(count for count, _ in kinds.values()) / len(commits)
    size = sum(total for _, total in kinds.values()) / len(commits)
    used = sum(cpu.get(role, 0.0) for role in PUMP_ROLES)
    updates = transactions(markers) * 10
    behind = statistics.median(one.behind for one in looks)
    name = f"updates.{version}"
    figures: dict[str, float | int | str | bool] = {
        f"{name}_rows": rows,
        f"{name}_updates": updates,
        f"{name}_updates_per_s": round(updates / (end - begin)),
        f"{name}_copy_s": round(copied, 1),
        f"{name}_commits": len(commits),
        f"{name}_commit_median_ms": round(statistics.median(milliseconds), 1),
        f"{name}_commit_first_ms": round(first, 1),
        f"{name}_commit_last_ms": round(last, 1),
        f"{name}_commit_p95_ms": round(statistics.quantiles(milliseconds, n=20)[-1], 1),
        f"{name}_objects_per_commit": round(objects, 2),
        f"{name}_bytes_per_commit": round(size),
        **{f"{name}_{kind}_objects": count for kind, (count, _) in kinds.items()},
        **{f"{name}_{kind}_bytes": total for kind, (_, total) in kinds.items()},
        f"{name}_behind_median_bytes": round(behind),
        f"{name}_delete_files_max": max(one.delete_files for one in looks),
        f"{name}_pump_cpu_s": round(used, 1),
        f"{name}_cpu_per_commit_ms": round(used / len(commits) * 1000, 1),
        "updates.verified": same,
        **peak.figures(f"updates_{version}"),
    }
    by_kind = ", ".join(f"{kind} {count:,} of {total / 1e6:,.1f} MB" for kind, (count, total) in sorted(kinds.items()))
    return BenchmarkResult(
        figures,
        (
            Line(f"updates, format {version}: a commit", f"{statistics.median(milliseconds):.1f} ms",
                 f"{first:.1f} ms", f"{last / first:.2f}", "",
                 f"the limit is the first tenth, the ratio the last tenth to it; {len(commits):,} commits of"
                 f" {updates:,} updates in {end - begin:.0f} s; {'heap = lake' if same else 'HEAP AND LAKE DIFFER'}"),
            Line(f"updates, format {version}: written a commit", f"{objects:.1f} objects, {size / 1000:,.0f} kB", "",
                 "", "", f"in all {by_kind}"),
            Line(f"updates, format {version}: CPU a commit", f"{used / len(commits) * 1000:,.0f} ms", "", "", "",
                 cpu_text(cpu)),
            Line(f"updates, format {version}: memory", str(peak)),
        ),
    )  # fmt: skip


def _watch(mirror: BenchmarkMirror, process: MeasuredProcess, written: _LakeObjects, end: float) -> list[Look]:
    looks: list[Look] = []
    with mirror.connect() as connection:
        while time.monotonic() < end:
            process.check()
            looks.append(look(connection))
            written.look()
            time.sleep(4 * LOOK_SECONDS)
    return looks


def _commits(steps: list[Taken]) -> list[tuple[float, float]]:
    """When each batch's commit ended (time.monotonic()), and its milliseconds, from all files written to published."""
    commits: list[tuple[float, float]] = []
    written: float | None = None
    for taken in steps:
        if taken.step is Step.WRITTEN:
            written = taken.at
        elif taken.step is Step.PUBLISHED and written is not None:
            commits.append((taken.at, (taken.at - written) * 1000))
            written = None
    return commits
