"""memory: one transaction of 5,000,000 rows compared with one of 200,000, and updates of 100,000 rows that leave large
values out compared with updates of 10,000: the peak must not grow with the size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.sampling import Peak
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

LARGE, SMALL = 5_000_000, 200_000
LARGE_VALUES, SMALL_VALUES = 100_000, 10_000
_WARM_UP = 50_000
_TIMEOUT = 900.0
_VALUES = "public.large_values"
_GOAL_MB, _GOAL_GROWTH = 1500, 1.1


@dataclass(frozen=True)
class _Drained:
    peak: Peak
    rows_per_s: float
    cpu: dict[str, float]


def fill(connection: psycopg.Connection[Any], options: Options) -> None:
    """Makes the table with 10 KB outside of each row, a fiftieth of it random. Such a value is sent with its row only
    if it changes."""
    rows = options.scaled(LARGE_VALUES, 2_000)
    connection.execute(f"CREATE TABLE {_VALUES} (id bigint PRIMARY KEY, n int, body text STORAGE EXTERNAL)".encode())
    connection.execute(
        f"INSERT INTO {_VALUES} SELECT i, 0, repeat(md5(i::text) || md5((-i)::text) || repeat('text ', 115), 15)"
        f" FROM generate_series(1, {rows}) i".encode()
    )


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """public.acct must be live and empty, the table of `fill` must not be registered. One pump takes all transactions,
    the smaller ones first, once Spark runs its tasks."""
    small, large = options.scaled(SMALL, 10_000), options.scaled(LARGE, 100_000)
    few, many = options.scaled(SMALL_VALUES, 200), options.scaled(LARGE_VALUES, 2_000)
    load, update = "CALL public.bench_load(%s, %s)", f"UPDATE {_VALUES} SET n = n + 1 WHERE id <= %s"
    measured: dict[str, _Drained] = {}
    with MeasuredProcess(mirror, "memory", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        mirror.program.run("register", _VALUES, timeout=_TIMEOUT)
        _drain(mirror, process, load, (0, _WARM_UP), _WARM_UP)
        measured["small_transaction"] = _drain(mirror, process, load, (_WARM_UP, small), small)
        measured["large_transaction"] = _drain(mirror, process, load, (_WARM_UP + small, large), large)
        measured["few_large_values"] = _drain(mirror, process, update, (few,), few)
        measured["many_large_values"] = _drain(mirror, process, update, (many,), many)
        process.stop()
    figures: dict[str, float | int | str | bool] = {
        "memory.small_transaction_rows": small,
        "memory.large_transaction_rows": large,
        "memory.few_large_values_rows": few,
        "memory.many_large_values_rows": many,
    }
    for name, result in measured.items():
        figures |= {**result.peak.figures(name), f"memory.{name}_rows_per_s": round(result.rows_per_s)}
    figures["memory.large_transaction_growth"] = _growth(measured, "small_transaction", "large_transaction")
    figures["memory.large_values_growth"] = _growth(measured, "few_large_values", "many_large_values")
    lines = [
        Line(f"memory: transaction of {small:,} rows", str(measured["small_transaction"].peak)),
        _line(f"memory: transaction of {large:,} rows", measured, "small_transaction", "large_transaction"),
        Line(f"memory: updates of {few:,} rows without their large values", str(measured["few_large_values"].peak)),
        _line(f"memory: the same of {many:,} rows", measured, "few_large_values", "many_large_values"),
    ]
    return BenchmarkResult(figures, tuple(lines))


def _growth(measured: dict[str, _Drained], small: str, large: str) -> float:
    return round(measured[large].peak.total / measured[small].peak.total, 3)


def _line(what: str, measured: dict[str, _Drained], small: str, large: str) -> Line:
    result = measured[large]
    remark = f"{result.rows_per_s:,.0f} rows/s; {cpu_text(result.cpu)}"
    goal = f"≤ {_GOAL_GROWTH}, ≤ {_GOAL_MB:,} MB"
    return Line(what, str(result.peak), "", f"{_growth(measured, small, large):.2f}", goal, remark)


def _drain(
    mirror: BenchmarkMirror, process: MeasuredProcess, statement: str, parameters: tuple[int, ...], rows: int
) -> _Drained:
    """Executes the statement, and measures from its end until the pump has published what it changed."""
    before = _received(process)
    mirror.execute(statement, *parameters)
    begin = time.monotonic()
    mirror.program.run("wait", "--now", "--timeout", str(_TIMEOUT), timeout=_TIMEOUT)
    end = time.monotonic()
    received = _received(process) - before
    if received != rows:
        raise BenchmarkFailed(f"{received} changes were received, not {rows}")
    return _Drained(process.sampler.peak(begin), rows / (end - begin), process.sampler.cpu(begin, end))


def _received(process: MeasuredProcess) -> int:
    return sum(taken.details["changes"] for taken in process.steps() if taken.step is Step.RECEIVED)
