"""retire: a partition of 1,000,000 rows is sealed, passed by the cut-line, proven and dropped, during 200 writes/s into
it. tier (bench_tier.py): the same with 10,000,000 rows of a tiered table, which are copied after the seal.

Measures how long each step takes, and how long other sessions wait for a lock meanwhile. Afterwards a seam read has to
find every row, with every acknowledged write.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from benchmarks import aging
from benchmarks.aging import TABLE
from benchmarks.late_writes import LateWrites
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from benchmarks.scene import BenchmarkMirror
from mirror_pump.config import load_settings
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import Step

ROWS = 1_000_000
_BEFORE = 10.0
"""Seconds of the same writes before the partition is due, to measure them without retention."""
_AFTER = 5.0
"""Seconds of writes after its drop."""
_LONGEST = 600.0
_POLL = 0.05

_SUMS = f"SELECT count(*), sum(balance), sum(id) FROM {TABLE}"
_PROOF = """
SELECT (details ->> 'seconds')::float8, (details ->> 'rows')::bigint FROM modak.op_log
 WHERE op_kind IN ('retention', 'tiering') AND phase = 'done' AND details ->> 'kind' = 'prove'
 ORDER BY updated_at DESC LIMIT 1
"""

Figures = dict[str, float | int | str | bool]


@dataclass(frozen=True)
class Leaving:
    """A partition that leaves the heap."""

    name: str
    """The benchmark's."""
    rows: int
    tiered: bool
    """Whether the table is a tiered one, and not a mirrored one with heap retention."""
    goal: int | None = None
    """Rows a second, from due to dropped."""
    longest_wait: float | None = None
    """The goal for other sessions' waits for a lock, seconds."""


@dataclass(frozen=True)
class _Times:
    """time.monotonic() of the partition's events."""

    due: float
    sealed: float
    passed: float
    proven: float
    dropped: float
    refused: int
    """Steps that were refused and tried again."""


_RETIRE = Leaving("retire", ROWS, tiered=False)


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 20_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the partition, with even keys, and an empty one above it."""
    aging.fill(connection, rows, 2, (0, 2 * rows + 1, 10 * rows))


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    return measure(mirror, options, _RETIRE)


def measure(mirror: BenchmarkMirror, options: Options, leaving: Leaving) -> BenchmarkResult:
    """As `run`, for a partition of either kind."""
    name, rows = leaving.name, options.scaled(leaving.rows, 20_000)
    aging.register(mirror, rows, tiered=leaving.tiered)
    with mirror.connect() as connection:
        before = connection.execute(_SUMS.encode()).fetchone()
    assert before is not None
    with MeasuredProcess(mirror, name, "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        with LateWrites(mirror, rows) as late:
            began = time.monotonic()
            _pause(late, process, _BEFORE)
            # It is due from now on, since the highest key is `lag` above it.
            highest = 3 * rows + 1
            due = time.monotonic()
            mirror.execute("INSERT INTO public.aging VALUES (%s, 0, 0, '', now())", highest)
            _await_drop(late, process, due)
            _pause(late, process, _AFTER)
            ended = time.monotonic()
        times = _times(process.steps(), due)
        cpu = process.sampler.cpu(due, times.dropped)
        expected = (before[0] + late.inserts + 1, before[1] + late.updates, before[2] + late.inserted_ids + highest)
        found = _seam(mirror)
        process.stop()
    with mirror.connect() as connection:
        proof = connection.execute(_PROOF).fetchone()
    assert proof is not None
    wait, statement = (one(due, ended) for one in (late.longest_wait, late.longest_statement))
    total = times.dropped - due
    phases = {
        "seal": (due, times.sealed),
        "pass": (times.sealed, times.passed),
        "prove": (times.passed, times.proven),
        # A step is reported once its locks are released, or shortly before.
        "drop": (times.proven, ended),
    }
    waits = {phase: late.longest_wait(*period) for phase, period in phases.items()}
    writes = late.statements(due, times.dropped) / total
    equal = tuple(map(Decimal, found)) == tuple(map(Decimal, expected))
    figures: Figures = {
        "rows": rows,
        "rows_per_s": round(rows / total),
        "seal_s": round(times.sealed - due, 3),
        "pass_s": round(times.passed - times.sealed, 3),
        "prove_s": round(times.proven - times.passed, 3),
        "proof_s": proof[0],
        "drop_s": round(times.dropped - times.proven, 3),
        "total_s": round(total, 3),
        "refused": times.refused,
        "writes_per_s": round(writes),
        "updated_rows": late.updates,
        "inserted_rows": late.inserts,
        "longest_wait_s": round(wait, 3),
        **{f"longest_wait_{phase}_s": round(seconds, 3) for phase, seconds in waits.items()},
        "longest_wait_before_s": round(late.longest_wait(began, due), 3),
        "longest_statement_s": round(statement, 3),
        "longest_statement_before_s": round(late.longest_statement(began, due), 3),
        "verified": equal,
    }
    lines = [
        Line(f"{name}: {rows:,} rows, due to dropped", f"{total:.1f} s, {rows / total:,.0f} rows/s", "", "",
             "" if leaving.goal is None else f"≥ {leaving.goal:,}",
             f"sealed after {times.sealed - due:.1f} s, passed by the cut-line"
             f" {times.passed - times.sealed:.1f} s later,"
             f" proven {times.proven - times.passed:.1f} s later (the proof {proof[0]:.1f} s), dropped"
             f" {times.dropped - times.proven:.1f} s later; {times.refused} steps tried again; {cpu_text(cpu)}"),
        Line(f"{name}: longest wait of another session for a lock", f"{wait * 1000:,.0f} ms", "", "",
             "" if leaving.longest_wait is None else f"≤ {leaving.longest_wait * 1000:,.0f} ms",
             f"{', '.join(f'{phase} {seconds * 1000:,.0f}' for phase, seconds in waits.items())};"
             f" {writes:,.0f} writes/s; longest statement {statement * 1000:,.0f} ms, in the {_BEFORE:.0f} s before"
             f" {figures['longest_statement_before_s']} s; "
             + ("seam read = what was written" if equal else f"WRONG: {found}, not {expected}")),
    ]  # fmt: skip
    named = {f"{name}.{figure}": value for figure, value in figures.items()}
    return BenchmarkResult(named, tuple(lines))


def _pause(late: LateWrites, process: MeasuredProcess, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        late.check()
        process.check()
        time.sleep(_POLL)


def _await_drop(late: LateWrites, process: MeasuredProcess, due: float) -> None:
    while not any(taken.details.get("step") == "drop" for taken in process.steps() if taken.step is Step.RETENTION):
        late.check()
        process.check()
        stopped = [taken.details for taken in process.steps() if taken.step is Step.RETENTION_STOPPED]
        if stopped:
            raise BenchmarkFailed(f"the retention stopped: {stopped[0]}")
        if time.monotonic() - due > _LONGEST:
            refused = [taken.details for taken in process.steps() if taken.step is Step.RETENTION_REFUSED]
            raise BenchmarkFailed(f"no drop within {_LONGEST:.0f} s; refused: {refused[-3:]}")
        time.sleep(_POLL)


def _times(steps: list[Taken], due: float) -> _Times:
    retention = {str(one.details["step"]): one.at for one in steps if one.step is Step.RETENTION}
    passed = [one.at for one in steps if one.step is Step.TIER_ADVANCED]
    refused = sum(one.step is Step.RETENTION_REFUSED for one in steps)
    if not passed or not {"seal", "prove", "drop"} <= retention.keys():
        raise BenchmarkFailed(f"steps are missing: {sorted(retention)}, the cut-line moved {len(passed)} times")
    return _Times(due, retention["seal"], passed[0], retention["prove"], retention["drop"], refused)


def _seam(mirror: BenchmarkMirror) -> tuple[Any, ...]:
    """The sums in DuckDB's seam read."""
    settings = complete(load_settings({"dsn": mirror.dsn}))
    with open_query(settings, Query(_SUMS), lambda _: None) as connection:
        row: tuple[Any, ...] | None = connection.execute(_SUMS).fetchone()
    assert row is not None
    return row
