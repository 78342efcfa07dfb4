"""copy: a table of 4,000,000 rows from the first chunk to live, compared with COPY in binary format to /dev/null; then
tables of one kind of column each."""

from __future__ import annotations

import os
import statistics
import subprocess
import time

from benchmarks import copied_kinds
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

ROWS = 4_000_000
_TIMEOUT = 900.0
_LIMIT_RUNS = 3


def rows_at(options: Options) -> int:
    """Rows of public.acct: a multiple of what the changes of cdc need."""
    return options.scaled(ROWS, 40_000, 4_000)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """Leaves the table registered and live. Makes `repeat` runs, between runs of the limit."""
    rows = rows_at(options)
    limits = [limit_seconds(mirror, TABLE)]
    seconds: list[float] = []
    figures: dict[str, float | int | str | bool] = {}
    cpu: dict[str, float] = {}
    peak = ""
    for number in range(options.repeat):
        if number:
            mirror.program.run("unregister", TABLE, "--drop-lake")
        settings = dict(options.settings)
        with MeasuredProcess(mirror, "copy", "register", settings, profiling=options.profiling) as process:
            process.finish(_TIMEOUT)
            begin, end = process.first(Step.COPY_PLANNED).at, process.first(Step.LIVE).at
            copied = sum(taken.details["rows"] for taken in process.steps() if taken.step is Step.CHUNK_COPIED)
            if copied != rows:
                raise BenchmarkFailed(f"{copied} rows were copied, not {rows}")
            seconds.append(end - begin)
            cpu = process.sampler.cpu(begin, end)
            highest = process.sampler.peak()
            figures |= highest.figures("copy")
            peak = str(highest)
        limits.append(limit_seconds(mirror, TABLE))
    while len(limits) < _LIMIT_RUNS:
        limits.append(limit_seconds(mirror, TABLE))
    rate, limit = rows / statistics.median(seconds), rows / statistics.median(limits)
    figures |= {
        "copy.rows": rows,
        "copy.runs": len(seconds),
        "copy.seconds": round(statistics.median(seconds), 3),
        "copy.rows_per_s": round(rate),
        "copy.limit_rows_per_s": round(limit),
        "copy.ratio": round(rate / limit, 3),
    }
    return BenchmarkResult(
        figures,
        (
            Line("copy", f"{rate:,.0f} rows/s", f"{limit:,.0f} rows/s", f"{rate / limit:.2f}", "≥ 0.6", cpu_text(cpu)),
            Line("copy: memory", peak),
        ),
    )


def run_kinds(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The tables of `copied_kinds.fill` must be there, and not registered."""
    return copied_kinds.run(mirror, options, limit_seconds)


def limit_seconds(mirror: BenchmarkMirror, table: str) -> float:
    """Seconds that COPY TO STDOUT takes through psql, its start included."""
    command = [str(mirror.server.binary("psql")), "-X", "-q", "-d", mirror.dsn, "-c",
               f"COPY {table} TO STDOUT (FORMAT binary)"]  # fmt: skip
    begin = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=_TIMEOUT, check=True, env={**os.environ, "PSQLRC": ""})
    return time.monotonic() - begin
