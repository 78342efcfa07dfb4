"""A table of many narrow rows, its updates, and what the lake has of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.lag_writer import RECORD
from benchmarks.outcome import Options
from benchmarks.pumping import BenchmarkFailed
from benchmarks.reading import current_snapshot, metadata
from benchmarks.scene import BenchmarkMirror
from mirror_pump.testing.lake import duckdb_connection

ROWS = 50_000_000
TABLE = "public.big"
UPDATES = "public.bench_ten_updates"
"""The function that a writer calls: a transaction of ten updates of random keys."""
PER_SECOND = 100
"""Transactions."""
COPY_SECONDS = 1800.0
LOOK_SECONDS = 0.5
"""Between looks at the table's newest snapshot."""
_CONVERTED_SECONDS = 120.0

_POINTER = """
SELECT i.metadata_location, pg_current_wal_insert_lsn() - '0/0' - c.replicated_lsn
  FROM modak.iceberg_tables i, modak.cutline c
 WHERE i.catalog_name = 'lake' AND i.table_namespace = 'public' AND i.table_name = 'big'
   AND c.table_id = 'public.big'::regclass
"""


@dataclass(frozen=True)
class Look:
    at: float
    """time.monotonic(), seconds."""
    pending: int
    """Rows in equality deletes."""
    delete_files: int
    behind: int
    """Bytes of WAL that the frontier has not passed."""


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 200_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the table before there is a slot: the walsender would take minutes to decode 50,000,000 inserts that it
    does not send."""
    connection.execute(Path(__file__).with_name("big.sql").read_bytes())
    # The time for creating it is not measured.
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET maintenance_work_mem = '1GB'")
    connection.execute("INSERT INTO public.big SELECT i, 0 FROM generate_series(1, %s::bigint) i", (rows,))
    connection.execute("ALTER TABLE public.big ADD PRIMARY KEY (id)")


def look(connection: psycopg.Connection[Any]) -> Look:
    row: tuple[Any, ...] | None = connection.execute(_POINTER, prepare=True).fetchone()
    assert row is not None
    _, summary = current_snapshot(metadata(row[0]))
    return Look(
        time.monotonic(),
        int(summary.get("total-equality-deletes", "0")),
        int(summary.get("total-delete-files", "0")),
        int(row[1]),
    )


def transactions(markers: Path) -> int:
    """How many a writer recorded there."""
    return markers.stat().st_size // RECORD.size


def equal(mirror: BenchmarkMirror) -> bool:
    """Compares count and sums that tie the values to their keys. Nobody may write meanwhile.

    Waits until there are no equality deletes, since DuckDB would take very long to apply them.
    """
    deadline = time.monotonic() + _CONVERTED_SECONDS
    with mirror.connect() as connection:
        while (newest := look(connection)).pending:
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{newest.pending:,} equality deletes are left {_CONVERTED_SECONDS:.0f} s later")
            time.sleep(LOOK_SECONDS)
    sums = "SELECT count(*), sum(n), sum(id * (n % 7)), {} FROM {}"
    with mirror.connect() as connection:
        row = connection.execute(_POINTER).fetchone()
        # The key is unique here.
        heap = connection.execute(sums.format("count(*)", "public.big").encode()).fetchone()
    assert row is not None
    with duckdb_connection() as duckdb:
        lake = duckdb.execute(sums.format("count(DISTINCT id)", f"iceberg_scan('{row[0]}')")).fetchone()
    assert heap is not None
    assert lake is not None
    return [int(value) for value in heap] == [int(value) for value in lake]
