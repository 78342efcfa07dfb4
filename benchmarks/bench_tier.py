"""tier: a partition of 10,000,000 rows of a tiered table is sealed, copied, passed by the cut-line, proven and dropped,
during 200 writes/s into it.

Measures as `retire` does. Nothing of the table was in the lake before.
"""

from __future__ import annotations

from typing import Any

import psycopg

from benchmarks import aging, bench_retire
from benchmarks.outcome import BenchmarkResult, Options
from benchmarks.scene import BenchmarkMirror

ROWS = 10_000_000
_TIER = bench_retire.Leaving("tier", ROWS, tiered=True, goal=800_000, longest_wait=0.05, limited=True)


def rows_at(options: Options) -> int:
    return options.scaled(ROWS, 20_000)


def fill(connection: psycopg.Connection[Any], rows: int) -> None:
    """Creates the partition, with even keys, and an empty one above it."""
    aging.fill(connection, rows, 2, (0, 2 * rows + 1, 10 * rows))


def run(mirror: BenchmarkMirror, options: Options) -> BenchmarkResult:
    """The table must exist, and not be registered yet."""
    return bench_retire.measure(mirror, options, _TIER)
