"""ingest: 10,000,000 rows of CSV straight into the lake, compared with COPY FROM of the file into an unlogged table.

The table is tiered, and all rows are below its cut-line. The limit is the server's own COPY, which reads the file
itself, into a table without an index. What is in the lake afterwards is compared with that table.
"""

from __future__ import annotations

import resource
import statistics
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import BenchmarkMirror
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import load_settings

ROWS = 10_000_000
TABLE = "public.history"
_COLUMNS = "id bigint, at timestamptz, kind text, n int, amount numeric(12,2), detail text"
_TIMEOUT = 1800.0
_GOAL = 0.5
"""Of the time that COPY takes."""

_CREATE = f"""
CREATE TABLE {TABLE} ({_COLUMNS}, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE public.history_new PARTITION OF {TABLE}
    FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2027-01-01 00:00:00+00');
CREATE UNLOGGED TABLE public.bare ({_COLUMNS});
"""
_INPUT = """
COPY (SELECT g AS id, '2025-01-01 00:00:00+00'::timestamptz - (%s - g) * interval '15 s' AS at,
             (ARRAY['click', 'view', 'buy'])[1 + g %% 3] AS kind, (g::bigint * 7919) %% 1000003 AS n,
             round(((g::bigint * 31) %% 1000000) / 100.0, 2) AS amount, md5(g::text) AS detail
        FROM generate_series(1, %s) g) TO STDOUT (FORMAT csv, HEADER)
"""
_MOVE = """
UPDATE modak.cutline SET tier_key_hi = (extract(epoch FROM '2026-01-01 00:00:00+00'::timestamptz) * 1000000)::bigint
 WHERE table_id = 'public.history'::regclass::oid::bigint
"""
"""As if older partitions had left, with no row in them."""
_SUMS = "SELECT count(*), sum(id), sum(n), sum(amount), min(detail), max(detail), max(at)::text FROM {}"


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 10_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the table and the one to compare with. The file is written when it is needed."""
    connection.execute(_CREATE.encode())


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The tables must exist, and not be registered yet."""
    rows = rows_at(options)
    mirror.program.run("register", TABLE, "--mode", "tiered", "--lag", "1000 days", "--yes", timeout=_TIMEOUT)
    mirror.execute(_MOVE)
    path = mirror.directory / "history.csv"
    _write(mirror, path, rows)
    copies, ingests, documents = [], [], []
    for number in range(options.repeat):
        mirror.execute("TRUNCATE public.bare")
        copies.append(_seconds(lambda: mirror.execute(f"COPY public.bare FROM '{path}' (FORMAT csv, HEADER)")))
        began = time.monotonic()
        output = mirror.program.run("ingest", TABLE, str(path), "--json", timeout=_TIMEOUT)
        ingests.append(time.monotonic() - began)
        documents.append(orjson.loads(output))
        if documents[-1]["lake_rows"] != rows or documents[-1]["replaced"] != (rows if number else 0):
            raise BenchmarkFailed(f"not all rows went to the lake: {documents[-1]}")
    # Rows of later runs replace those of the first, which takes longer, and is no first load.
    copy, ingest = statistics.median(copies), ingests[0]
    equal = _sums(mirror) == _bare_sums(mirror)
    size = path.stat().st_size
    # Of all programs that this one has waited for: the others need less.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    figures: dict[str, float | int | str | bool] = {
        "ingest.rows": rows,
        "ingest.file_bytes": size,
        "ingest.seconds": round(ingest, 2),
        "ingest.inner_seconds": documents[0]["seconds"],
        "ingest.replacing_seconds": round(ingests[-1], 2) if options.repeat > 1 else 0,
        "ingest.copy_seconds": round(copy, 2),
        "ingest.ratio": round(ingest / copy, 3),
        "ingest.peak_bytes": peak,
        "ingest.verified": equal,
    }
    remark = (
        f"{size / 1e6 / ingest:,.0f} MB/s of CSV, the program's start included; {documents[0]['seconds']:.1f} s"
        f" without; at most {peak / 1e6:,.0f} MB of memory"
    )
    if options.repeat > 1:
        remark += f"; replacing all rows {ingests[-1]:.1f} s"
    return BenchmarkResult(
        figures,
        (
            Line(
                f"ingest: {rows:,} rows of CSV",
                f"{ingest:.1f} s",
                f"COPY into an unlogged table: {copy:.1f} s",
                f"{ingest / copy:.2f}",
                f"{_GOAL:.2f}",
                remark + ("" if equal else "; WRONG: the lake has other rows"),
            ),
        ),
    )


def _write(mirror: BenchmarkMirror, path: Path, rows: int) -> None:
    statement = (_INPUT % (rows, rows)).encode()
    with mirror.connect() as connection, connection.cursor().copy(statement) as copy, path.open("wb") as file:
        for part in copy:
            file.write(part)


def _seconds(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _bare_sums(mirror: BenchmarkMirror) -> list[str]:
    with mirror.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        row = connection.execute(_SUMS.format("public.bare").encode()).fetchone()
    assert row is not None
    return [str(Decimal(value)) if isinstance(value, int | Decimal) else str(value) for value in row]


def _sums(mirror: BenchmarkMirror) -> list[str]:
    settings = complete(load_settings({"dsn": mirror.dsn}))
    with open_query(settings, Query(f"FROM {TABLE}", ReadMode.SEAM), print) as duckdb:
        duckdb.execute("SET TimeZone = 'UTC'")
        row = duckdb.execute(_SUMS.format(TABLE).replace("max(at)", 'max("at")')).fetchone()
    assert row is not None
    return [str(Decimal(value)) if isinstance(value, int | Decimal) else str(value) for value in row]
