"""repair: 1,000 rows of the lake that differ are found and replaced, compared with copying the table again."""

from __future__ import annotations

import time

import orjson

from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from tests.support.drift import drift

ROWS = 10_000_000
_TIMEOUT = 1800.0
_DIFFERING = 1_000


def rows_at(options: Options) -> int:
    """Rows of public.acct."""
    return options.scaled(ROWS, 10_000)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live. Each time is that of the command, beside a pump that runs."""
    rows = rows_at(options)
    settings = Settings(dsn=mirror.dsn, slot=mirror.name, publication=mirror.name, **mirror.storage)  # type: ignore[arg-type]  # pydantic reads texts
    with MeasuredProcess(mirror, "repair", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        drift(settings, TABLE, removed=[(str(key),) for key in range(1, rows, rows // _DIFFERING)])
        began = time.monotonic()
        report = orjson.loads(mirror.program.run("resync", TABLE, "--where-different", "--json", timeout=_TIMEOUT))
        repaired = time.monotonic() - began
        (table,) = report["tables"]
        if not table["repaired"] or table["missing"] < _DIFFERING:
            raise BenchmarkFailed(f"the repair found something else: {table}")
        repair_cpu = process.sampler.cpu(began, began + repaired)
        began = time.monotonic()
        mirror.program.run("resync", TABLE, timeout=_TIMEOUT)
        copied = time.monotonic() - began
        copy_cpu = process.sampler.cpu(began, began + copied)
        process.stop()
    figures: dict[str, float | int | str | bool] = {
        "repair.rows": rows,
        "repair.differing": table["missing"],
        "repair.seconds": round(repaired, 2),
        "repair.copied_seconds": round(copied, 2),
        "repair.ratio": round(repaired / copied, 3),
        "repair.cpu_ratio": round(sum(repair_cpu.values()) / max(sum(copy_cpu.values()), 0.01), 3),
    }
    if options.verify:
        verified = orjson.loads(mirror.program.run("verify", "--json", TABLE, timeout=_TIMEOUT))
        figures["repair.verified"] = all(table["equal"] for table in verified["tables"])
    title = f"repair: {table['missing']:,} of {rows:,} rows"
    remark = f"{cpu_text(repair_cpu)}; copied again: {cpu_text(copy_cpu)}"
    line = Line(title, f"{repaired:.1f} s", f"copied again: {copied:.1f} s", f"{repaired / copied:.2f}", "≤ 1", remark)
    return BenchmarkResult(figures, (line,))
