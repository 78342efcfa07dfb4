"""whole-rows: a table without a key, found by all of its values: the first delete after a start, and later ones."""

from __future__ import annotations

import statistics
import time
from typing import Any

import orjson
import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

ROWS = 10_000_000
_TABLE = "public.bag"
_LATER = 20
_BULK = 100_000
_TIMEOUT = 1800.0


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 50_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Each row is there twice."""
    connection.execute("CREATE TABLE bag (n bigint, moment timestamptz, amount numeric(10,2), note text)")
    connection.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    values = "g / 2, timestamptz '2026-03-01 00:00Z' + g / 2 * interval '1 s', g / 2 %% 1000 / 4.0, 'note ' || g / 2"
    connection.execute(f"INSERT INTO bag SELECT {values} FROM generate_series(1, %s) g".encode(), (rows,))
    connection.execute("CREATE INDEX ON bag (n)")


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet. Each time is from the COMMIT until the frontier has passed."""
    rows = rows_at(options)
    began = time.monotonic()
    mirror.program.run("register", _TABLE, timeout=_TIMEOUT)
    copied = time.monotonic() - began
    with MeasuredProcess(mirror, "whole-rows", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        first = _seconds(mirror, f"DELETE FROM bag WHERE n = {rows // 4}")
        one = [_seconds(mirror, f"DELETE FROM bag WHERE n = {rows // 4 + place}") for place in range(1, _LATER + 1)]
        bulk = min(_BULK, rows // 10)
        many = _seconds(mirror, f"UPDATE bag SET amount = amount + 1 WHERE n BETWEEN 1 AND {bulk // 2}")
        peak = process.sampler.peak(began)
        process.stop()
    with MeasuredProcess(mirror, "whole-rows-again", "run", options.settings) as process:
        process.wait_for(Step.STREAMING)
        restarted = _seconds(mirror, f"DELETE FROM bag WHERE n = {rows // 4 - 1}")
        process.stop()
    figures: dict[str, float | int | str | bool] = {
        "whole-rows.rows": rows,
        "whole-rows.copy_rows_per_s": round(rows / copied),
        "whole-rows.first_delete_s": round(first, 2),
        "whole-rows.first_delete_after_restart_s": round(restarted, 2),
        "whole-rows.later_delete_ms": round(statistics.median(one) * 1000, 1),
        "whole-rows.updates": bulk,
        "whole-rows.updates_s": round(many, 2),
        **peak.figures("whole-rows"),
    }
    if options.verify:
        verified = orjson.loads(mirror.program.run("verify", "--json", _TABLE, timeout=_TIMEOUT))
        figures["whole-rows.verified"] = all(table["equal"] for table in verified["tables"])
    return BenchmarkResult(
        figures,
        (
            Line(
                f"whole-rows: the first delete ever, of {rows:,} rows without a key",
                f"{first:.1f} s",
                remark=f"after a restart {restarted:.1f} s",
            ),
            Line("whole-rows: later deletes", f"{statistics.median(one) * 1000:.0f} ms", remark="median of 20"),
            Line(f"whole-rows: {bulk:,} updates in one transaction", f"{many:.1f} s"),
            Line("whole-rows: memory", str(peak)),
        ),
    )


def _seconds(mirror: BenchmarkMirror, statement: str) -> float:
    """From the COMMIT of the statement until the frontier has passed it."""
    with mirror.connect() as connection:
        with connection.transaction():
            connection.execute(statement.encode())
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        began = time.monotonic()
        while time.monotonic() < began + _TIMEOUT:
            # The commit record is behind that position, and the frontier is at the end of one.
            reached = connection.execute("SELECT applied_lsn > %s FROM modak.mirror_slots", (row[0],)).fetchone()
            if reached == (True,):
                return time.monotonic() - began
            time.sleep(0.005)
    raise BenchmarkFailed(f"the frontier did not pass {statement}")
