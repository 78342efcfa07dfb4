"""load: 500,000 rows of CSV in a labelled load, by the command and by HTTP, compared with COPY FROM of the file.

Three tables of the same kind: tiered, with a primary key and two partitions, and all rows above the cut-line. COPY is
the server's own, which reads the file itself.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed
from benchmarks.scene import BenchmarkMirror
from mirror_pump.http.access import Access
from mirror_pump.http.server import HttpServer, application
from mirror_pump.ops.load.load_endpoint import LoadEndpoint
from mirror_pump.settings.config import Settings

ROWS = 500_000
_TABLES = ("public.by_copy", "public.by_command", "public.by_http")
_TIMEOUT = 1800.0
_INPUT = """
COPY (SELECT g AS id, '2026-01-01 00:00:00+00'::timestamptz + g * interval '10 s' AS at,
             (ARRAY['click', 'view', 'buy'])[1 + g %% 3] AS kind, (g::bigint * 7919) %% 1000003 AS n,
             round(((g::bigint * 31) %% 1000000) / 100.0, 2) AS amount, md5(g::text) AS detail
        FROM generate_series(1, %s) g) TO STDOUT (FORMAT csv, HEADER)
"""


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 10_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the tables. The file is written when it is needed."""
    for table in _TABLES:
        statements = (
            f"CREATE TABLE {table} (id bigint, at timestamptz, kind text, n int, amount numeric(12,2), detail text,"
            " PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
            f"CREATE TABLE {table}_2026a PARTITION OF {table} FOR VALUES FROM ('2026-01-01+00') TO ('2026-02-01+00');"
            f"CREATE TABLE {table}_2026b PARTITION OF {table} FOR VALUES FROM ('2026-02-01+00') TO ('2028-01-01+00')"
        )
        connection.execute(statements.encode())


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The tables must exist, and not be registered yet."""
    rows = rows_at(options)
    mirror.program.run("register", *_TABLES, "--mode", "tiered", "--lag", "1000 days", "--yes", timeout=_TIMEOUT)
    path = mirror.directory / "load.csv"
    statement = (_INPUT % rows).encode()
    with mirror.connect() as connection, connection.cursor().copy(statement) as copy, path.open("wb") as file:
        for part in copy:
            file.write(part)
    copied, command, port = _TABLES
    copy_seconds = _seconds(lambda: mirror.execute(f"COPY {copied} FROM '{path}' (FORMAT csv, HEADER)"))
    command_seconds = _seconds(
        lambda: mirror.program.run("load", command, str(path), "--label", "bench", timeout=_TIMEOUT)
    )
    http_seconds = _by_http(mirror, port, path)
    equal = _sums(mirror, copied) == _sums(mirror, command) == _sums(mirror, port)
    figures: dict[str, float | int | str | bool] = {
        "load.rows": rows,
        "load.file_bytes": path.stat().st_size,
        "load.copy_seconds": round(copy_seconds, 2),
        "load.command_seconds": round(command_seconds, 2),
        "load.command_ratio": round(command_seconds / copy_seconds, 2),
        "load.http_seconds": round(http_seconds, 2),
        "load.http_ratio": round(http_seconds / copy_seconds, 2),
        "load.verified": equal,
    }
    limit = f"COPY into the same kind of table: {copy_seconds:.1f} s, {rows / copy_seconds:,.0f} rows/s"
    wrong = "" if equal else "; WRONG: the tables have other rows"
    return BenchmarkResult(
        figures,
        tuple(
            Line(
                f"load {how}: {rows:,} rows of CSV",
                f"{seconds:.1f} s",
                limit,
                f"{seconds / copy_seconds:.2f}",
                "",
                f"{rows / seconds:,.0f} rows/s{remark}{wrong}",
            )
            for how, seconds, remark in (
                ("by command", command_seconds, ", the program's start included"),
                ("by HTTP", http_seconds, ""),
            )
        ),
    )


def _by_http(mirror: BenchmarkMirror, table: str, path: Path) -> float:
    """Seconds that a PUT of the file takes, from the connection to the answer."""
    app = application(LoadEndpoint(Settings(dsn=mirror.dsn, loads=True)).routes(), Access(loads=True))
    with HttpServer("127.0.0.1", 0, app) as server:
        began = time.monotonic()
        port = int(server.url.rpartition(":")[2])
        with (
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)) as connection,
            path.open("rb") as file,
        ):
            connection.request("PUT", f"/load/{table}", file, {"label": "bench", "Content-Type": "text/csv"})
            answer = connection.getresponse()
            document = orjson.loads(answer.read())
        if answer.status != 200:
            raise BenchmarkFailed(f"the load by HTTP was refused: {document}")
        return time.monotonic() - began


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _sums(mirror: BenchmarkMirror, table: str) -> object:
    with mirror.connect() as connection:
        return connection.execute(
            f"SELECT count(*), sum(id), sum(n), sum(amount), min(detail), max(detail), max(at) FROM {table}".encode()
        ).fetchone()
