"""fold: 100,000 corrections of 4,000,000 rows in the lake, compared with a MERGE INTO of the same rows by Spark.

The table is tiered and keeps its heap, so that corrections come from plain UPDATE and DELETE, in one transaction. The
pump runs, with the table's key index. The limit merges the same rows, from a Parquet file, into a copy of the table
in a catalog of its own, after a merge that warms Spark up; no pump runs meanwhile.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import aging
from benchmarks.aging import TABLE
from benchmarks.merge_process import SUMS
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.reading import ReaderProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import load_settings

ROWS = 4_000_000
CORRECTIONS = 100_000
_WARM_UP = 1_000
_SECONDS = 300.0
_POLL = 0.02

_TIERED = "SELECT count(*) FROM modak.partitions WHERE partition_id = 'public.aging_0' AND state = 'tiered'"
_UNFOLDED = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
_CORRECTED = f"""
SELECT k.id, a.branch, a.balance, a.note, a.updated, CASE WHEN a.id IS NULL THEN 1 ELSE 0 END AS op
  FROM (SELECT i * %s::bigint AS id FROM generate_series(1, %s::bigint) i) k LEFT JOIN {TABLE} a ON a.id = k.id
"""
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("branch", pa.int32()),
        ("balance", pa.decimal128(14, 2)),
        ("note", pa.string()),
        ("updated", pa.timestamp("us", "UTC")),
        ("op", pa.int32()),
    ]
)


class _Merger(ReaderProcess):
    module = "benchmarks.merge_process"

    def _environment(self) -> dict[str, str]:
        # Without the user's own settings of the program.
        return {key: value for key, value in os.environ.items() if not key.startswith("MIRROR_PUMP_")}


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 20_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the partition, and an empty one above it."""
    aging.fill(connection, rows, 1, (0, rows + 1, 10 * rows))


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    rows, corrections = rows_at(options), options.scaled(CORRECTIONS, 1_000)
    apart = rows // corrections
    mirror.program.run(
        "register", TABLE, "--mode", "tiered", "--lag", str(rows), "--keep-heap", "--yes", timeout=_SECONDS
    )
    mirror.execute("INSERT INTO public.aging VALUES (%s, 0, 0, '', now())", 2 * rows + 1)
    with MeasuredProcess(mirror, "fold-before", "run", options.settings) as process:
        process.wait_for(Step.STREAMING)
        _await(mirror, process, _TIERED, 1)
        process.stop()
    with _Merger("spark", mirror) as merger:
        if merger.error:
            raise BenchmarkFailed(f"Spark: {merger.error}")
        version = merger.version or "Spark"
        # Before the corrections, so that it changes nothing: the rows are those of the table.
        warm_up = _write(mirror, apart, min(_WARM_UP, corrections))
        _merge(merger, warm_up, _WARM_UP)
        with MeasuredProcess(mirror, "fold", "run", options.settings, profiling=options.profiling) as process:
            process.wait_for(Step.STREAMING)
            with mirror.connect() as connection:
                connection.execute("CALL public.bench_correct(%s, %s)", (corrections, corrections * apart + 1))
            began = time.monotonic()
            _await(mirror, process, _UNFOLDED, 0)
            ended = time.monotonic()
            folds = [taken.details["rows"] for taken in process.steps() if taken.step is Step.FOLDED]
            cpu = process.sampler.cpu(began, ended)
            process.stop()
        seconds = ended - began
        merged = _merge(merger, _write(mirror, apart, corrections), corrections)
    found, expected = _lake(mirror), _heap(mirror)
    ratio = seconds / float(merged["seconds"])
    wrong = [
        f"{who} has {sums}, the heap {expected}"
        for who, sums in (("the lake", found), ("the copy", merged["result"]))
        if sums != expected
    ]
    figures: dict[str, float | int | str | bool] = {
        "fold.rows": rows,
        "fold.corrections": corrections,
        "fold.seconds": round(seconds, 3),
        "fold.corrections_per_s": round(corrections / seconds),
        "fold.folds": len(folds),
        "fold.merge_s": round(float(merged["seconds"]), 3),
        "fold.ratio": round(ratio, 3),
        "fold.verified": not wrong,
    }
    lines = [
        Line(
            f"fold: {corrections:,} corrections",
            f"{seconds:.1f} s, {corrections / seconds:,.0f}/s",
            f"{merged['seconds']:.1f} s",
            f"{ratio:.2f}",
            "",
            f"{len(folds)} folds; of {rows:,} rows; limit: MERGE INTO, {version}; "
            + (f"WRONG: {'; '.join(wrong)}" if wrong else "lake = heap")
            + f"; {cpu_text(cpu)}",
        )
    ]
    return BenchmarkResult(figures, tuple(lines))


def _await(mirror: BenchmarkMirror, process: MeasuredProcess, query: str, count: int) -> None:
    """Returns once the query counts that many rows."""
    began = time.monotonic()
    with mirror.connect() as connection:
        while connection.execute(query.encode()).fetchone() != (count,):
            process.check()
            if time.monotonic() - began > _SECONDS:
                raise BenchmarkFailed(f"after {_SECONDS:.0f} s: {query}")
            time.sleep(_POLL)


def _write(mirror: BenchmarkMirror, apart: int, count: int) -> Path:
    """The present rows of the first `count` keys that the corrections have, as Parquet; `op` is 1 for those that are
    gone."""
    path = mirror.directory / f"corrections-{count}.parquet"
    with mirror.connect() as connection:
        rows = connection.execute(_CORRECTED.encode(), (apart, count)).fetchall()
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    pq.write_table(pa.table(arrays, schema=_SCHEMA), path)
    return path


def _merge(merger: ReaderProcess, corrections: Path, rows: int) -> dict[str, Any]:
    answer = merger.ask({"corrections": str(corrections), "rows": rows}, _SECONDS)
    if "error" in answer:
        raise BenchmarkFailed(f"MERGE INTO: {answer['error'][:2000]}")
    return answer


def _heap(mirror: BenchmarkMirror) -> list[str]:
    """The sums of the rows that the lake has as well."""
    with mirror.connect() as connection:
        row = connection.execute(SUMS.format("public.aging_0").encode()).fetchone()
    assert row is not None
    return [str(value) for value in row]


def _lake(mirror: BenchmarkMirror) -> list[str]:
    """The sums of the lake, after the last fold."""
    settings = complete(load_settings({"dsn": mirror.dsn}))
    statement = SUMS.format(TABLE)
    with open_query(settings, Query(statement, ReadMode.LAKE), lambda _: None) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return [str(value) for value in row]
