"""conversion: 1,000 updates of random keys a second on 50,000,000 rows: do equality deletes stay few, and at what cost?

Only runs if it is named, as the table takes minutes to create: `make bench ARGS='--only conversion'`.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.lag_writer import RECORD
from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from benchmarks.reading import current_snapshot, metadata
from benchmarks.sampling import PUMP_ROLES
from benchmarks.scene import BenchmarkMirror
from benchmarks.writing import steady_writer
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.lake import duckdb_connection

ROWS = 50_000_000
SECONDS = 180
TABLE = "public.big"
_PER_SECOND = 100
"""Transactions, of ten updates each."""
_LOOK = 0.5
"""Seconds between looks at the table's newest snapshot."""
_COPY_SECONDS = 1800.0
_CONVERTED_SECONDS = 120.0

_POINTER = """
SELECT i.metadata_location, pg_current_wal_insert_lsn() - '0/0' - c.replicated_lsn
  FROM modak.iceberg_tables i, modak.cutline c
 WHERE i.catalog_name = 'lake' AND i.table_namespace = 'public' AND i.table_name = 'big'
   AND c.table_id = 'public.big'::regclass
"""


@dataclass(frozen=True)
class _Look:
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


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    rows = rows_at(options)
    began = time.monotonic()
    mirror.program.run("register", TABLE, timeout=_COPY_SECONDS)
    copied = time.monotonic() - began
    settings = {**options.settings}
    if "index_memory" in Settings.model_fields:
        # With positions from an index, no equality delete would ever be visible, and nothing converted.
        settings.setdefault("index_memory", "0")
    with MeasuredProcess(mirror, "conversion", "run", settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        with steady_writer(mirror, _PER_SECOND, mirror.directory / "conversion.markers", 0,
                           "public.bench_ten_updates", rows):  # fmt: skip
            begin = time.monotonic()
            end = begin + max(20.0, SECONDS * options.scale)
            looks = _watch(mirror, process, end)
        cpu, peak = process.sampler.cpu(begin, end), process.sampler.peak(begin)
        steps = process.steps()
        mirror.program.run("wait", "--now", "--timeout", "120")
        equal = _equal(mirror)
        process.stop()
    seconds, found = _conversions(steps, begin)
    if not seconds and any(look.pending for look in looks):
        raise BenchmarkFailed("equality deletes came, and nothing was converted")
    middle, last = (
        max(look.pending for look in looks if low <= (look.at - begin) / (end - begin) <= high)
        for low, high in ((1 / 3, 2 / 3), (2 / 3, 1))
    )
    highest = max(look.pending for look in looks)
    updates = _markers(mirror) * 10
    share = sum(seconds) / (end - begin)
    typical = statistics.median(seconds or [0.0])
    used = sum(cpu.get(role, 0.0) for role in PUMP_ROLES)
    figures: dict[str, float | int | str | bool] = {
        "conversion.rows": rows,
        "conversion.updates": updates,
        "conversion.updates_per_s": round(updates / (end - begin)),
        "conversion.seconds": round(end - begin, 1),
        "conversion.copy_s": round(copied, 1),
        "conversion.pending_max": highest,
        "conversion.pending_last_third_max": last,
        "conversion.pending_growth": round(last / max(middle, 1), 2),
        "conversion.behind_max_bytes": max(look.behind for look in looks),
        "conversion.delete_files_max": max(look.delete_files for look in looks),
        "conversion.conversions": len(seconds),
        "conversion.converted_deletes": found,
        "conversion.median_s": round(typical, 2),
        "conversion.max_s": round(max(seconds, default=0.0), 2),
        "conversion.share_of_time": round(share, 3),
        "conversion.pump_cpu_share": round(used / (end - begin), 3),
        "conversion.verified": equal,
        **peak.figures("conversion"),
    }
    return BenchmarkResult(
        figures,
        (
            Line(f"conversion: {updates / (end - begin):,.0f} updates/s, {rows:,} rows", f"≤ {highest:,} pending", "",
                 f"{last / max(middle, 1):.2f}", "≤ 1.2",
                 f"last third of {end - begin:.0f} s to the one before; {len(seconds)} conversions of"
                 f" {found / max(1, len(seconds)):,.0f} deletes, {typical:.1f} s each;"
                 f" {'heap = lake' if equal else 'HEAP AND LAKE DIFFER'}"),
            Line("conversion: share of the time with a task at work", f"{share:.0%}", "", "", "≤ 50 %", cpu_text(cpu)),
            Line("conversion: memory", str(peak)),
        ),
    )  # fmt: skip


def _watch(mirror: BenchmarkMirror, process: MeasuredProcess, end: float) -> list[_Look]:
    looks: list[_Look] = []
    with mirror.connect() as connection:
        while time.monotonic() < end:
            process.check()
            looks.append(_look(connection))
            time.sleep(_LOOK)
    return looks


def _look(connection: psycopg.Connection[Any]) -> _Look:
    row: tuple[Any, ...] | None = connection.execute(_POINTER, prepare=True).fetchone()
    assert row is not None
    _, summary = current_snapshot(metadata(row[0]))
    return _Look(
        time.monotonic(),
        int(summary.get("total-equality-deletes", "0")),
        int(summary.get("total-delete-files", "0")),
        int(row[1]),
    )


def _conversions(steps: list[Taken], begin: float) -> tuple[list[float], int]:
    """Seconds that the tasks of each conversion since `begin` took, and the number of converted deletes."""
    seconds: list[float] = []
    deletes = 0
    since: float | None = None
    for taken in steps:
        if taken.at < begin:
            continue
        if taken.step is Step.CONVERTING:
            since = taken.at
        elif taken.step is Step.POSITIONS_WRITTEN and since is not None:
            seconds.append(taken.at - since)
            since = None
        elif taken.step is Step.CONVERTED:
            deletes += int(taken.details["deletes"])
    return seconds, deletes


def _markers(mirror: BenchmarkMirror) -> int:
    """The transactions that were written."""
    return (mirror.directory / "conversion.markers").stat().st_size // RECORD.size


def _equal(mirror: BenchmarkMirror) -> bool:
    """Compares count and sums that tie the values to their keys. Nobody may write meanwhile.

    Waits until there are no equality deletes, since DuckDB would take very long to apply them.
    """
    deadline = time.monotonic() + _CONVERTED_SECONDS
    with mirror.connect() as connection:
        while (look := _look(connection)).pending:
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{look.pending:,} equality deletes are left {_CONVERTED_SECONDS:.0f} s later")
            time.sleep(_LOOK)
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
