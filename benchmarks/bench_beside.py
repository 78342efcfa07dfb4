"""lag-beside: ten changes a second to one table, from each commit until a polling reader sees that the frontier has
passed it: alone, while another table gets 5,000,000 rows in one transaction, and while it gets 100,000 rows a second,
for a minute each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from benchmarks.bench_cdc import is_equal
from benchmarks.bench_lag import Phase, committed_in, measured, rows_at
from benchmarks.outcome import BenchmarkResult, Line, Options
from benchmarks.pump_process import TABLE
from benchmarks.scene import BenchmarkMirror, BenchmarkScene
from benchmarks.writing import steady_writer

HEAVY_TABLE = "public.heavy"
_LARGE_TRANSACTION = 5_000_000
_HEAVY_TRANSACTIONS = 100
"""A second, of _HEAVY_ROWS rows each."""
_HEAVY_ROWS = 1_000
_AFTER = 1200.0
"""Seconds in which the pump has to be through with everything."""

_LIGHT_AND_HEAVY = f"""
CREATE TABLE {HEAVY_TABLE} (LIKE public.acct INCLUDING INDEXES);
CREATE FUNCTION public.bench_one(number bigint, n bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE public.acct SET balance = balance + 1 WHERE id = 1 + number * 7919 % n;
$$;
-- `n` rows: with the keys below zero for the number -1, else with those above.
CREATE FUNCTION public.bench_heavy(number bigint, n bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {HEAVY_TABLE}
    SELECT number * n + i, i % 100, i / 100.0, md5(i::text), clock_timestamp() FROM generate_series(1, n) i;
$$;
"""
_ALONE = Phase(
    "lag_light",
    "lag.light_",
    "lag at 10 changes/s",
    function="public.bench_one",
    per_second=10,
    changes=1,
    after=_AFTER,
)


@contextmanager
def mirrored(scene: BenchmarkScene, options: Options) -> Iterator[BenchmarkMirror]:
    """A mirror whose `acct` and HEAVY_TABLE, which is empty, are live."""

    def fill(connection: psycopg.Connection[Any]) -> None:
        connection.execute(_LIGHT_AND_HEAVY.encode())

    with scene.mirror("bench_beside", rows_at(options), fill) as mirror:
        mirror.program.run("register", TABLE, HEAVY_TABLE, timeout=1800)
        yield mirror


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    large = options.scaled(_LARGE_TRANSACTION, 100_000, 1_000)
    figures: dict[str, float | int | str | bool] = {}

    def one_transaction(mirror: BenchmarkMirror, begin: float, _end: float) -> None:
        time.sleep(max(0.0, begin - time.monotonic()))
        mirror.execute("SELECT public.bench_heavy(-1, %s)", large)
        figures["lag.large_written_s"] = round(time.monotonic() - begin, 1)

    def many_changes(mirror: BenchmarkMirror, begin: float, end: float) -> None:
        file = mirror.directory / "heavy.markers"
        time.sleep(max(0.0, begin - time.monotonic()))
        with steady_writer(mirror, _HEAVY_TRANSACTIONS, file, 0, "public.bench_heavy", _HEAVY_ROWS):
            time.sleep(max(0.0, end - time.monotonic()))
        changes = committed_in(file, begin, end) * _HEAVY_ROWS
        figures["lag.heavy_written_per_s"] = round(changes / (end - begin))

    beside_large = replace(
        _ALONE,
        name="lag_large",
        prefix="lag.large_",
        what=f"lag at 10 changes/s, beside {large:,} rows in one transaction",
        beside=one_transaction,
    )
    what = "lag at 10 changes/s, beside 100,000 changes/s"
    beside_heavy = replace(_ALONE, name="lag_heavy", prefix="lag.heavy_", what=what, beside=many_changes)
    lines: list[Line] = []
    for phase in (_ALONE, beside_large, beside_heavy):
        outcome = measured(mirror, options, phase)
        figures |= outcome.figures
        lines += outcome.lines
    lines.append(Line("lag: the large transaction", f"{figures['lag.large_written_s']} s until COMMIT has returned"))
    lines.append(Line("lag: the other table's changes", f"{figures['lag.heavy_written_per_s']:,}/s"))
    if options.verify:
        figures["lag-beside.verified"] = is_equal(mirror)
    return BenchmarkResult(figures, tuple(lines))
