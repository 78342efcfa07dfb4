"""schema: a column with a constant default on 10,000,000 rows, compared with copying the table again."""

from __future__ import annotations

import time

import orjson

from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pump_process import TABLE
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

ROWS = 10_000_000
_TIMEOUT = 1800.0

_FILLED = f"ALTER TABLE {TABLE} ADD COLUMN flag int NOT NULL DEFAULT 7"
_COPIED = f"ALTER TABLE {TABLE} ADD COLUMN chance float8 DEFAULT random()"
"""Volatile: every row has another value, which only the heap can tell."""


def rows_at(options: Options) -> int:
    """Rows of public.acct."""
    return options.scaled(ROWS, 10_000)


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must be live. Each time is from the end of ALTER TABLE to the publish that shows the new column."""
    rows = rows_at(options)
    with MeasuredProcess(mirror, "schema", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        filled, began, ended = _seconds(mirror, process, _FILLED, Step.TABLE_FILLING)
        cpu = process.sampler.cpu(began, ended)
        copied, _, _ = _seconds(mirror, process, _COPIED, Step.TABLE_COPIED_AGAIN)
        peak = process.sampler.peak()
        process.stop()
    figures: dict[str, float | int | str | bool] = {
        "schema.rows": rows,
        "schema.filled_seconds": round(filled, 2),
        "schema.copied_seconds": round(copied, 2),
        "schema.ratio": round(filled / copied, 3),
        **{f"schema.cpu_{role}_s": used for role, used in cpu.items()},
        **peak.figures("schema"),
    }
    if options.verify:
        report = orjson.loads(mirror.program.run("verify", "--json", TABLE, timeout=_TIMEOUT))
        figures["schema.verified"] = all(table["equal"] for table in report["tables"])
    return BenchmarkResult(
        figures,
        (
            Line(
                f"schema: a constant default, {rows:,} rows",
                f"{filled:.1f} s",
                f"copied again: {copied:.1f} s",
                f"{filled / copied:.2f}",
                "",
                cpu_text(cpu),
            ),
            Line("schema: memory", str(peak)),
        ),
    )


def _seconds(
    mirror: BenchmarkMirror, process: MeasuredProcess, statement: str, expected: Step
) -> tuple[float, float, float]:
    """From the statement's end until the table is live, and both times (time.monotonic())."""
    seen = sum(taken.step is Step.LIVE for taken in process.steps())
    with mirror.connect() as connection:
        connection.execute(statement.encode())
    began = time.monotonic()
    deadline = began + _TIMEOUT
    while True:
        process.check()
        live = [taken.at for taken in process.steps() if taken.step is Step.LIVE]
        if len(live) > seen:
            break
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"the table is not live {_TIMEOUT:.0f} s after {statement}")
        time.sleep(0.02)
    if not any(taken.step is expected for taken in process.steps()):
        raise BenchmarkFailed(f"{statement}: no step {expected}")
    return live[seen] - began, began, live[seen]
