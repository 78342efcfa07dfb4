"""layout: the same table copied as it is, and partitioned and sorted: rows/s, files, changes, and a filtered read."""

from __future__ import annotations

import statistics
import time
from typing import Any

import psycopg
from pyiceberg.table import StaticTable

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.lake import duckdb_connection, metadata_location_on

_ROWS = 4_000_000
_DAYS = 30
_TENANTS = 200
_TIMEOUT = 1800.0
_READS = 5
_LAYOUT = ("--partition-by", "day(moment), bucket(4, tenant)", "--sort-by", "tenant, moment")
_FILTER = "moment >= '2026-03-10 00:00:00Z' AND moment < '2026-03-11 00:00:00Z' AND tenant = 7"


def rows_at(options: Options) -> int:
    """Rows of each table."""
    return options.scaled(_ROWS, 20_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Two tables with the same rows, in no order of time or tenant."""
    for table in ("plain", "divided"):
        columns = "id bigint PRIMARY KEY, moment timestamptz, tenant int, amount numeric(10,2), note text"
        connection.execute(f"CREATE TABLE {table} ({columns})".encode())
        moment = f"timestamptz '2026-03-01 00:00Z' + (g::bigint * 7919 %% {_DAYS * 86_400}) * interval '1 s'"
        values = f"g, {moment}, g * 31 %% {_TENANTS}, g %% 1000 / 4.0, 'note ' || g"
        connection.execute(f"INSERT INTO {table} SELECT {values} FROM generate_series(1, %s) g".encode(), (rows,))


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """Registers both tables, one after the other, beside a pump that runs."""
    rows = rows_at(options)
    figures: dict[str, float | int | str | bool] = {"layout.rows": rows}
    with MeasuredProcess(mirror, "layout", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        for table, layout in (("plain", ()), ("divided", _LAYOUT)):
            began = time.monotonic()
            mirror.program.run("register", table, *layout, timeout=_TIMEOUT)
            figures[f"layout.{table}.rows_per_s"] = round(rows / (time.monotonic() - began))
            files, reading, found = _read(mirror, table)
            figures |= {
                f"layout.{table}.files": files,
                f"layout.{table}.read_ms": round(reading * 1000, 1),
                f"layout.{table}.found": found,
            }
            began = time.monotonic()
            mirror.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id <= {rows // 20}")
            mirror.program.run("wait", "--now", "--timeout", "600", timeout=_TIMEOUT)
            figures[f"layout.{table}.update_seconds"] = round(time.monotonic() - began, 2)
        process.stop()
    figures["layout.verified"] = figures["layout.plain.found"] == figures["layout.divided.found"]
    return BenchmarkResult(
        figures,
        (
            _line("copy", figures, "rows_per_s", "{:,} rows/s"),
            _line("data files after it", figures, "files", "{:,}"),
            _line("a read of one tenant's day", figures, "read_ms", "{:,} ms"),
            _line(f"{rows // 20:,} updates until they are readable", figures, "update_seconds", "{} s"),
        ),
    )


def _line(what: str, figures: dict[str, Any], name: str, shown: str) -> Line:
    divided, plain = figures[f"layout.divided.{name}"], figures[f"layout.plain.{name}"]
    return Line(
        f"layout: {what}, partitioned and sorted",
        shown.format(divided),
        f"neither: {shown.format(plain)}",
        f"{divided / plain:.2f}",
        "",
        "",
    )


def _read(mirror: BenchmarkMirror, table: str) -> tuple[int, float, str]:
    """Data files, the median time of the filtered read by DuckDB, and what it finds."""
    with mirror.connect() as connection:
        location = metadata_location_on(connection, f"public.{table}")
    snapshot = StaticTable.from_metadata(location).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    seconds = []
    answer = ""
    with duckdb_connection() as duckdb:
        for _ in range(_READS):
            began = time.monotonic()
            (row,) = duckdb.execute(
                f"SELECT count(*), sum(amount) FROM iceberg_scan('{location}') WHERE {_FILTER}"
            ).fetchall()
            seconds.append(time.monotonic() - began)
            answer = str(row)
    return int(snapshot.summary["total-data-files"] or 0), statistics.median(seconds), answer
