"""retire: a partition of 1,000,000 rows is sealed, passed by the cut-line, proven and dropped, during 200 writes/s into
it. tier (bench_tier.py): the same with 10,000,000 rows of a tiered table, which are copied after the seal.

Measures how long each step takes, and how long other sessions wait for a lock meanwhile. Afterwards a seam read has to
find every row, with every acknowledged write.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import load_settings

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

_PARTITION = "public.aging_0"
_HALF = f"SELECT pg_relation_size('{_PARTITION}') / current_setting('block_size')::bigint / 2"
_READ = """
import sys, pyarrow.parquet as pq
for path in sys.argv[1:]:
    for batch in pq.ParquetFile(path).iter_batches():
        pass
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
    limited: bool = False
    """Whether to measure what reading the heap and the lake alone takes."""


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


@dataclass(frozen=True)
class _ReadingTimes:
    """Seconds of reading a partition with both cores, and nothing else at work: the least that a copy with its proof
    could take, if decoding, writing and comparing took no time."""

    heap: float
    """By COPY in binary format to /dev/null, each half in a session of its own."""
    lake: float
    """By pyarrow, all columns of all files, each half in a process of its own."""

    @property
    def total(self) -> float:
        """The copy reads the heap, the proof reads the heap again, and the lake."""
        return 2 * self.heap + self.lake

    def __str__(self) -> str:
        return f"reading the heap twice, {self.heap:.1f} s each, and the lake, {self.lake:.1f} s, with nothing beside"


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
    reading = _heap_seconds(mirror) if leaving.limited else None
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
    limit = None if reading is None else _ReadingTimes(reading, _lake_seconds(mirror))
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
        Line(f"{name}: {rows:,} rows, due to dropped", f"{total:.1f} s, {rows / total:,.0f} rows/s",
             "" if limit is None else f"{limit.total:.1f} s", "" if limit is None else f"{total / limit.total:.2f}",
             "" if leaving.goal is None else f"≥ {leaving.goal:,}",
             f"sealed after {times.sealed - due:.1f} s, passed by the cut-line"
             f" {times.passed - times.sealed:.1f} s later,"
             f" proven {times.proven - times.passed:.1f} s later (the proof {proof[0]:.1f} s), dropped"
             f" {times.dropped - times.proven:.1f} s later; {times.refused} steps tried again; {cpu_text(cpu)}"
             + ("" if limit is None else f"; limit: {limit}")),
        Line(f"{name}: longest wait of another session for a lock", f"{wait * 1000:,.0f} ms", "", "",
             "" if leaving.longest_wait is None else f"≤ {leaving.longest_wait * 1000:,.0f} ms",
             f"{', '.join(f'{phase} {seconds * 1000:,.0f}' for phase, seconds in waits.items())};"
             f" {writes:,.0f} writes/s; longest statement {statement * 1000:,.0f} ms, in the {_BEFORE:.0f} s before"
             f" {figures['longest_statement_before_s']} s; "
             + ("seam read = what was written" if equal else f"WRONG: {found}, not {expected}")),
    ]  # fmt: skip
    if limit is not None:
        figures |= {"heap_read_s": round(limit.heap, 3), "lake_read_s": round(limit.lake, 3)}
        figures["ratio"] = round(total / limit.total, 3)
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


def _heap_seconds(mirror: BenchmarkMirror) -> float:
    """Seconds of two COPY TO STDOUT at once, psql's start included."""
    psql = [str(mirror.server.binary("psql")), "-X", "-q", "-d", mirror.dsn, "-c"]
    with mirror.connect() as connection:
        row = connection.execute(_HALF).fetchone()
    assert row is not None
    halves = (f"ctid < '({row[0]},0)'", f"ctid >= '({row[0]},0)'")
    copies = [f"COPY (SELECT * FROM {_PARTITION} WHERE {half}) TO STDOUT (FORMAT binary)" for half in halves]
    return _both([[*psql, copy] for copy in copies])


def _lake_seconds(mirror: BenchmarkMirror) -> float:
    """Seconds of two processes that read the lake's files, their start included."""
    paths = sorted(str(path) for path in (mirror.directory / "lake").rglob("data/*.parquet"))
    return _both([[sys.executable, "-c", _READ, *paths[half::2]] for half in range(2)])


def _both(commands: list[list[str]]) -> float:
    """Seconds until both have ended."""
    began = time.monotonic()
    environment = {**os.environ, "PSQLRC": ""}
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for command in commands]
    codes = [process.wait(_LONGEST) for process in running]
    if any(codes):
        raise BenchmarkFailed(f"{commands[0][:5]} ended with {codes}")
    return time.monotonic() - began
