"""conversion: 1,000 updates of random keys a second on 50,000,000 rows: do equality deletes stay few, and at what cost?

Only runs if it is named, as the table takes minutes to create: `make bench ARGS='--only conversion'`.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.big_table import (
    COPY_SECONDS,
    LOOK_SECONDS,
    PER_SECOND,
    TABLE,
    UPDATES,
    Look,
    equal,
    fill,
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
from mirror_pump.settings.config import Settings

__all__ = ("fill", "rows_at", "run")

SECONDS = 180


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    rows = rows_at(options)
    began = time.monotonic()
    mirror.program.run("register", TABLE, timeout=COPY_SECONDS)
    copied = time.monotonic() - began
    settings = {**options.settings}
    if "index_memory" in Settings.model_fields:
        # With positions from an index, no equality delete would ever be visible, and nothing converted.
        settings.setdefault("index_memory", "0")
    markers = mirror.directory / "conversion.markers"
    with MeasuredProcess(mirror, "conversion", "run", settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        with steady_writer(mirror, PER_SECOND, markers, 0,
                           UPDATES, rows):  # fmt: skip
            begin = time.monotonic()
            end = begin + max(20.0, SECONDS * options.scale)
            looks = _watch(mirror, process, end)
        cpu, peak = process.sampler.cpu(begin, end), process.sampler.peak(begin)
        steps = process.steps()
        mirror.program.run("wait", "--now", "--timeout", "120")
        same = equal(mirror)
        process.stop()
    seconds, found = _conversions(steps, begin)
    if not seconds and any(one.pending for one in looks):
        raise BenchmarkFailed("equality deletes came, and nothing was converted")
    middle, last = (
        max(one.pending for one in looks if low <= (one.at - begin) / (end - begin) <= high)
        for low, high in ((1 / 3, 2 / 3), (2 / 3, 1))
    )
    highest = max(one.pending for one in looks)
    updates = transactions(markers) * 10
    share = sum(seconds) / (end - begin)
    typical = statistics.median(seconds or [0.0])
    used = sum(cpu.get(role, 0.0) for role in PUMP_ROLES)
    figures: dict[str, float | int | str | bool] = {
        "conversion.rows": rows,
        "conversion.updates": updates,
        "conversion.updates_per_s": round(updates / (end - begin)),
        "conversion.seconds": round(end - begin, 1),
        "conversion.copy_s": round(copied, 1),
        "conversion.pending_max": highest,
        "conversion.pending_last_third_max": last,
        "conversion.pending_growth": round(last / max(middle, 1), 2),
        "conversion.behind_max_bytes": max(one.behind for one in looks),
        "conversion.delete_files_max": max(one.delete_files for one in looks),
        "conversion.conversions": len(seconds),
        "conversion.converted_deletes": found,
        "conversion.median_s": round(typical, 2),
        "conversion.max_s": round(max(seconds, default=0.0), 2),
        "conversion.share_of_time": round(share, 3),
        "conversion.pump_cpu_share": round(used / (end - begin), 3),
        "conversion.verified": same,
        **peak.figures("conversion"),
    }
    return BenchmarkResult(
        figures,
        (
            Line(f"conversion: {updates / (end - begin):,.0f} updates/s, {rows:,} rows", f"≤ {highest:,} pending", "",
                 f"{last / max(middle, 1):.2f}", "≤ 1.2",
                 f"last third of {end - begin:.0f} s to the one before; {len(seconds)} conversions of"
                 f" {found / max(1, len(seconds)):,.0f} deletes, {typical:.1f} s each;"
                 f" {'heap = lake' if same else 'HEAP AND LAKE DIFFER'}"),
            Line("conversion: share of the time with a task at work", f"{share:.0%}", "", "", "≤ 50 %", cpu_text(cpu)),
            Line("conversion: memory", str(peak)),
        ),
    )  # fmt: skip


def _watch(mirror: BenchmarkMirror, process: MeasuredProcess, end: float) -> list[Look]:
    looks: list[Look] = []
    with mirror.connect() as connection:
        while time.monotonic() < end:
            process.check()
            looks.append(look(connection))
            time.sleep(LOOK_SECONDS)
    return looks


def _conversions(steps: list[Taken], begin: float) -> tuple[list[float], int]:
    """Seconds that the tasks of each conversion since `begin` took, and the number of converted deletes."""
    seconds: list[float] = []
    deletes = 0
    since: float | None = None
    for taken in steps:
        if taken.at < begin:
            continue
        if taken.step is Step.CONVERTING:
            since = taken.at
        elif taken.step is Step.POSITIONS_WRITTEN and since is not None:
            seconds.append(taken.at - since)
            since = None
        elif taken.step is Step.CONVERTED:
            deletes += int(taken.details["deletes"])
    return seconds, deletes
