"""public.aging: the table with heap retention of the benchmarks seam, retire and tier."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.scene import BenchmarkMirror

TABLE = "public.aging"
_REGISTER_SECONDS = 1800.0


def fill(connection: psycopg.Connection[Any], rows: int, step: int, bounds: Sequence[int]) -> None:
    """Creates the table, with a partition between each two `bounds` and rows with the keys step .. rows * step."""
    connection.execute(Path(__file__).with_name("aging.sql").read_bytes())
    for number, (low, high) in enumerate(itertools.pairwise(bounds)):
        connection.execute(
            sql.SQL("CREATE TABLE {} PARTITION OF public.aging FOR VALUES FROM ({}) TO ({})").format(
                sql.Identifier("public", f"aging_{number}"), sql.Literal(low), sql.Literal(high)
            )
        )
    # The time for creating it is not measured.
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET maintenance_work_mem = '512MB'")
    connection.execute("CALL public.bench_age(%s, %s)", (rows, step))
    connection.execute("ALTER TABLE public.aging ADD PRIMARY KEY (id)")


def register(mirror: BenchmarkMirror, lag: int, *, tiered: bool = False) -> None:
    """Lets partitions leave the heap that are completely more than `lag` below the highest key. Copies the table
    before, unless it is a tiered one."""
    distance = ("--mode", "tiered", "--lag", str(lag)) if tiered else ("--heap-retention", str(lag))
    chosen = (*distance, "--drop-grace", "0s", "--yes")
    mirror.program.run("register", TABLE, *chosen, timeout=_REGISTER_SECONDS)
