"""seam: reads of 10,000,000 rows, 90 % of them in the lake, compared with reads of the same rows from the heap alone.

A pin keeps the heap's old partitions from being dropped while the cut-line passes them. So both reads find all rows, in
one table, and a write to an old partition is a correction and in the heap as well. The pump has stopped before the
reads, since it would fold the corrections.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg

from benchmarks import aging
from benchmarks.aging import TABLE
from benchmarks.engines import POSTGRES, Checks, checks
from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.reading import ReaderProcess
from benchmarks.scene import BenchmarkMirror
from benchmarks.seam_process import SCAN, SUMS
from mirror_pump.pipeline.flow.steps import Step

ROWS = 10_000_000
CORRECTIONS = 10_000
ENGINES = ("spark", "duckdb")
SEAM, HEAP = "seam", "heap"
EMPTY, CORRECTED = "empty", "delta"
"""The states of modak.delta."""
_PARTITIONS = 10
"""The number of partitions, of equal size; all but the last one leave."""
_ROUNDS = 3
_BUDGET = 60.0
"""Seconds for an engine's rounds in one state, after which no further round begins."""
_LEAVING_SECONDS = 900.0
_ANSWER_SECONDS = 600.0
_POLL = 0.2

_STATES = "SELECT state, count(*) FROM modak.partitions WHERE table_id = 'public.aging'::regclass GROUP BY state"
_DELTA = "SELECT count(*) FROM modak.delta WHERE table_id = 'public.aging'::regclass::oid::bigint"

Figures = dict[str, float | int | str | bool]


@dataclass(frozen=True)
class _Took:
    """Seconds of a query in each mode, by round."""

    seconds: Mapping[str, list[float]]

    def median(self, mode: str) -> float:
        return statistics.median(self.seconds[mode])

    @property
    def ratio(self) -> float:
        """Ratio of the seam read to the heap read."""
        return self.median(SEAM) / self.median(HEAP)


class _SeamReader(ReaderProcess):
    module = "benchmarks.seam_process"

    def _environment(self) -> dict[str, str]:
        # Neither the user's own settings of the program, nor a time zone in which Spark's JDBC source would shift times
        # (docs/reading.md).
        chosen = {key: value for key, value in os.environ.items() if not key.startswith("MIRROR_PUMP_")}
        return {**chosen, "TZ": "UTC"}


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 10_000, 100)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the table before there is a slot."""
    aging.fill(connection, rows, 1, [1 + rows // _PARTITIONS * number for number in range(_PARTITIONS + 1)])


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    rows = rows_at(options)
    corrections = options.scaled(CORRECTIONS, 100)
    edge = rows - rows // _PARTITIONS + 1
    aging.register(mirror, rows // _PARTITIONS - 1)
    # The first cut-line is below every row.
    mirror.execute("SELECT modak.pin('public.aging', interval '6 hours', true)")
    leaving = _leave(mirror, options)
    figures: Figures = {"seam.rows": rows, "seam.corrections": corrections, "seam.leaving_s": round(leaving, 1)}
    took: dict[tuple[str, str, str], _Took] = {}
    versions: dict[str, str] = {}
    wrong: list[str] = []
    with ExitStack() as stack:
        readers = [stack.enter_context(_SeamReader(engine, mirror)) for engine in ENGINES]
        for state in (EMPTY, CORRECTED):
            if state == CORRECTED:
                figures["seam.correcting_s"] = round(_correct(mirror, corrections, edge), 2)
            expected, seconds = _heap_checks(mirror)
            figures[f"seam.postgres_{state}_s"] = round(seconds, 3)
            for reader in readers:
                versions[reader.engine] = reader.version or reader.engine
                if reader.error:
                    wrong.append(f"{reader.engine}: {reader.error}")
                    continue
                found, failures = _compare(reader, mirror, state, expected)
                took |= {(reader.engine, state, query): one for query, one in found.items()}
                wrong += failures
    figures["seam.verified"] = not wrong
    lines = [Line("seam: the cut-line has passed 90 % of the rows", f"{leaving:.0f} s", "", "", "",
                  f"{_PARTITIONS - 1} partitions sealed, passed and proven, one after the other")]  # fmt: skip
    for engine in ENGINES:
        for state in (EMPTY, CORRECTED):
            if (engine, state, SUMS) in took and (engine, state, SCAN) in took:
                sums, scan = took[engine, state, SUMS], took[engine, state, SCAN]
                figures |= _figures(engine, state, sums, scan)
                shown = "empty delta" if state == EMPTY else f"{corrections:,} corrections"
                lines.append(_line(f"seam: {versions[engine]}, {shown}", rows, sums, scan))
    itself = " and ".join(f"{figures[f'seam.postgres_{state}_s']} s" for state in (EMPTY, CORRECTED))
    lines.append(Line("seam: the same sums by PostgreSQL itself", "", itself))
    lines += [Line("seam: WRONG", text[:300]) for text in wrong]
    return BenchmarkResult(figures, tuple(lines))


def _leave(mirror: BenchmarkMirror, options: Options) -> float:
    """Seconds until all due partitions are proven; the pin prevents their drop. Then the pump has ended."""
    with MeasuredProcess(mirror, "seam", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        began = time.monotonic()
        with mirror.connect() as connection:
            while True:
                states: dict[str, int] = dict(connection.execute(_STATES).fetchall())
                if states.get("tiered", 0) == _PARTITIONS - 1:
                    break
                process.check()
                if time.monotonic() - began > _LEAVING_SECONDS:
                    raise BenchmarkFailed(f"after {_LEAVING_SECONDS:.0f} s partitions are {states}")
                time.sleep(_POLL)
        seconds = time.monotonic() - began
        process.stop()
    return seconds


def _correct(mirror: BenchmarkMirror, corrections: int, edge: int) -> float:
    """Seconds that the corrections took, by plain UPDATE and DELETE of rows that the heap still has."""
    began = time.monotonic()
    mirror.execute("CALL public.bench_correct(%s, %s)", corrections, edge)
    seconds = time.monotonic() - began
    with mirror.connect() as connection:
        row = connection.execute(_DELTA).fetchone()
    if row is None or row[0] != corrections:
        raise BenchmarkFailed(f"{row} corrections are in the delta, not {corrections}")
    # The state in which readers of the heap find it some time after such writes.
    mirror.execute("VACUUM public.aging")
    return seconds


def _heap_checks(mirror: BenchmarkMirror) -> tuple[Checks, float]:
    """Postgres's own answers, and its seconds."""
    with mirror.connect() as connection:
        began = time.monotonic()
        row = connection.execute(POSTGRES.scan(TABLE).encode()).fetchone()
        seconds = time.monotonic() - began
    assert row is not None
    return checks(row), seconds


def _compare(
    reader: ReaderProcess, mirror: BenchmarkMirror, state: str, expected: Checks
) -> tuple[dict[str, _Took], list[str]]:
    """Runs each query in both modes, in turns. Returns the times and the errors. Readings are appended to a file as
    they come."""
    results: dict[str, object] = {SUMS: expected, SCAN: expected["rows"]}
    seconds: dict[str, dict[str, list[float]]] = {query: {SEAM: [], HEAP: []} for query in results}
    with (mirror.directory / "seam.readings").open("ab", buffering=0) as file:

        def ask(mode: str, query: str) -> tuple[float, str]:
            answer = reader.ask({"mode": mode, "query": query}, _ANSWER_SECONDS)
            noted = {"engine": reader.engine, "state": state, "mode": mode, "query": query, **answer}
            file.write(orjson.dumps(noted) + b"\n")
            if "error" in answer:
                return 0.0, f"{reader.engine}, {mode}, {query}: {answer['error']}"
            if answer["result"] != results[query]:
                found = f"{answer['result']}, but the heap has {results[query]}"
                return 0.0, f"{reader.engine}, {state}, {mode}, {query}: {found}"
            return float(answer["seconds"]), ""

        # An engine's first query includes its start. A seam read does everything that a read of the heap does.
        for query in results if state == EMPTY else ():
            if error := ask(SEAM, query)[1]:
                return {}, [error]
        began = time.monotonic()
        for number in range(_ROUNDS):
            if number and time.monotonic() - began > _BUDGET:
                break
            for query in results:
                for mode in (SEAM, HEAP):
                    took, error = ask(mode, query)
                    if error:
                        return {}, [error]
                    seconds[query][mode].append(took)
    return {query: _Took(modes) for query, modes in seconds.items()}, []


def _figures(engine: str, state: str, sums: _Took, scan: _Took) -> Figures:
    """With an empty delta, the ratios' names do not contain the state."""
    prefix = f"seam.{engine}" if state == EMPTY else f"seam.{engine}_{state}"
    figures: Figures = {
        f"{prefix}_ratio": round(sums.ratio, 3),
        f"{prefix}_scan_ratio": round(scan.ratio, 3),
        f"{prefix}_rounds": len(sums.seconds[SEAM]),
    }
    for query, one in ((SUMS, sums), (SCAN, scan)):
        for mode in (SEAM, HEAP):
            figures[f"{prefix}_{mode}_{query}_s"] = round(one.median(mode), 3)
            figures[f"{prefix}_{mode}_{query}_all_s"] = " ".join(f"{took:.3f}" for took in one.seconds[mode])
    return figures


def _line(what: str, rows: int, sums: _Took, scan: _Took) -> Line:
    ours, limit = sums.median(SEAM), sums.median(HEAP)
    remark = f"all rows: {scan.median(SEAM):.2f} and {scan.median(HEAP):.2f} s ({scan.ratio:.2f})"
    speed = f"{ours:.2f} s, {rows / ours / 1e6:.1f} M rows/s"
    return Line(what, speed, f"{limit:.2f} s", f"{sums.ratio:.2f}", "", remark)
