"""Transactions on public.acct, one at a time or at a steady pace, for benchmarks that need the pump to commit."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import ROOT, BenchmarkMirror

FRONTIER = "SELECT replicated_lsn FROM modak.cutline WHERE table_id = 'public.acct'::regclass"
_LONGEST = 60.0
"""Seconds that one commit may take."""
_POLL = 0.002
_NEXT = "SELECT greatest(0, (max(id) - %s + 3) / 4) FROM public.acct"


def next_number(mirror: BenchmarkMirror) -> int:
    """The first number with which bench_ten was not called yet."""
    with mirror.connect() as connection:
        row = connection.execute(_NEXT, (mirror.rows,)).fetchone()
    assert row is not None
    return int(row[0])


def write_one_by_one(mirror: BenchmarkMirror, process: MeasuredProcess, transactions: int, tens: int) -> float:
    """Writes that many transactions of `tens` times ten changes, each once the frontier has passed the one before.
    Returns the seconds."""
    first = next_number(mirror)
    began = time.monotonic()
    with mirror.connect() as connection:
        for number in range(transactions):
            at = first + number * tens
            with connection.transaction():
                connection.execute(
                    "SELECT count(public.bench_ten(i, %s)) FROM generate_series(%s::bigint, %s) i",
                    (mirror.rows, at, at + tens - 1),
                )
                # Before the commit record: after it, the position might be higher than the frontier will ever be.
                row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
            assert row is not None
            deadline = time.monotonic() + _LONGEST
            while True:
                published = connection.execute(FRONTIER, prepare=True).fetchone()
                if published is not None and published[0] is not None and published[0] > row[0]:
                    break
                process.check()
                if time.monotonic() > deadline:
                    raise BenchmarkFailed(f"transaction {number} was not published within {_LONGEST:.0f} s")
                time.sleep(_POLL)
    return time.monotonic() - began


@contextmanager
def steady_writer(
    mirror: BenchmarkMirror,
    per_second: int,
    file: Path,
    first: int | None = None,
    function: str = "public.bench_ten",
    rows: int | None = None,
) -> Iterator[None]:
    """A process that writes that many transactions of ten changes a second, and records them in `file`
    (lag_writer.py)."""
    request = {
        "dsn": mirror.dsn,
        "rows": mirror.rows if rows is None else rows,
        "per_second": per_second,
        "first": next_number(mirror) if first is None else first,
        "file": str(file),
        "function": function,
    }
    writer = subprocess.Popen([sys.executable, "-m", "benchmarks.lag_writer"], stdin=subprocess.PIPE, cwd=ROOT)
    try:
        assert writer.stdin is not None
        writer.stdin.write(orjson.dumps(request))
        writer.stdin.close()
        yield
    finally:
        writer.terminate()
        writer.wait(10)
