"""Tables of one kind of column each, copied by a pump that runs, compared with COPY in binary format to /dev/null."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.outcome import BenchmarkResult, Line, Options, cpu_text
from benchmarks.pumping import BenchmarkFailed, MeasuredProcess, Taken
from benchmarks.scene import BenchmarkMirror
from mirror_pump.pipeline.flow.steps import Step

_TIMEOUT = 300.0
_GOAL = 0.5

_MIXED = (
    ("int", "hashint8(i + {n}) % 1000000"),
    ("bigint", "hashint8extended(i, {n})"),
    ("text", "left(md5((i + {n})::text), 10)"),
    ("float8", "hashint8(i + {n}) / 7.0"),
    ("timestamptz", "timestamptz '2024-01-01 00:00:00+00' + (hashint8(i + {n}) % 100000000) * interval '1 ms'"),
)
"""Types of the 200 columns, in turn, and what they hold."""

_DOCUMENT = """jsonb_build_object('id', i, 'name', md5(i::text), 'tags', jsonb_build_array('a', i % 7, i % 13),
    'amount', (hashint8(i) % 100000) / 100.0, 'nested', jsonb_build_object('at', i * 3, 'ok', i % 2 = 0))"""


@dataclass(frozen=True)
class CopiedKind:
    """A table (id bigint primary key, ...)."""

    name: str
    rows: int
    columns: tuple[tuple[str, str], ...]
    """The type of each column, and the expression for row `i`."""

    @property
    def table(self) -> str:
        return f"public.copied_{self.name}"

    def rows_at(self, options: Options) -> int:
        return options.scaled(self.rows, self.rows // 100)


KINDS = (
    CopiedKind(
        "columns",
        60_000,
        tuple((kind, value.format(n=n)) for n, (kind, value) in enumerate(_MIXED[n % 5] for n in range(199))),
    ),
    # 1 KB of hexadecimal digits, of which no two rows have the same.
    CopiedKind(
        "texts",
        500_000,
        (("text", " || ".join(f"encode(sha512((i * 8 + {n})::text::bytea), 'hex')" for n in range(8))),),
    ),
    CopiedKind(
        "numerics",
        1_000_000,
        (
            ("numeric(14,2)", "(hashint8(i) % 100000000) / 100.0"),
            ("numeric(20,6)", "hashint8extended(i, 1)::numeric / 1000000"),
            ("numeric(38,10)", "hashint8extended(i, 2)::numeric * 1000 + 0.123"),
            ("numeric(9,3)", "(hashint8(i + 7) % 1000000) / 1000.0"),
            ("numeric(12,0)", "hashint8extended(i, 3) % 1000000000000"),
        ),
    ),
    CopiedKind(
        "timestamps",
        2_000_000,
        (
            ("timestamptz", "timestamptz '2024-01-01 00:00:00+00' + i * interval '1.000137 s'"),
            ("timestamp", "timestamp '2020-01-01' + hashint8(i) * interval '1 ms'"),
            ("date", "date '2000-01-01' + hashint8(i) % 9000"),
            ("timestamptz", "timestamptz '2024-01-01 00:00:00+00' + (hashint8(i + 3) % 100000000) * interval '1 us'"),
        ),
    ),
    CopiedKind(
        "jsonb",
        700_000,
        (("jsonb", _DOCUMENT),),
    ),
)


def fill(connection: psycopg.Connection[Any], options: Options) -> None:
    """Makes the tables, with fewer rows at a smaller scale."""
    for kind in KINDS:
        columns = ", ".join(f"c{n} {column}" for n, (column, _) in enumerate(kind.columns))
        values = ", ".join(value for _, value in kind.columns)
        rows = f"SELECT i, {values} FROM generate_series(1, {kind.rows_at(options)}) i"
        connection.execute(f"CREATE TABLE {kind.table} (id bigint PRIMARY KEY, {columns})".encode())
        connection.execute(f"INSERT INTO {kind.table} {rows}".encode())


def run(mirror: BenchmarkMirror, options: Options, limit: Callable[[BenchmarkMirror, str], float]) -> BenchmarkResult:
    """Copies one table after the other, once Spark runs the tasks. `limit`: seconds that COPY of a table takes."""
    figures: dict[str, float | int | str | bool] = {}
    lines: list[Line] = []
    with MeasuredProcess(mirror, "copy-kinds", "run", options.settings, profiling=options.profiling) as process:
        process.wait_for(Step.STREAMING)
        for kind in KINDS:
            rows = kind.rows_at(options)
            limits = [limit(mirror, kind.table)]
            mirror.program.run("register", kind.table, timeout=_TIMEOUT)
            limits.append(limit(mirror, kind.table))
            steps = [taken for taken in process.steps() if taken.details.get("table") == kind.table]
            copied = sum(taken.details["rows"] for taken in steps if taken.step is Step.CHUNK_COPIED)
            if copied != rows:
                raise BenchmarkFailed(f"{copied} rows of {kind.table} were copied, not {rows}")
            begin, end = _first(steps, Step.COPY_PLANNED).at, _first(steps, Step.LIVE).at
            heap = mirror.heap_bytes(kind.table)
            rate, most = rows / (end - begin), rows / statistics.median(limits)
            megabytes = heap / 1e6 / (end - begin)
            name = f"copy.{kind.name}"
            figures |= {
                f"{name}.rows": rows,
                f"{name}.rows_per_s": round(rate),
                f"{name}.mb_per_s": round(megabytes, 1),
                f"{name}.limit_rows_per_s": round(most),
                f"{name}.ratio": round(rate / most, 3),
            }
            remark = f"{megabytes:,.0f} MB/s of heap; {cpu_text(process.sampler.cpu(begin, end))}"
            lines.append(
                Line(f"copy: {kind.name}", f"{rate:,.0f} rows/s", f"{most:,.0f} rows/s", f"{rate / most:.2f}",
                     f"≥ {_GOAL}", remark)
            )  # fmt: skip
        process.stop()
    return BenchmarkResult(figures, tuple(lines))


def _first(steps: list[Taken], step: Step) -> Taken:
    found = [taken for taken in steps if taken.step is step]
    if not found:
        raise BenchmarkFailed(f"no step {step} of a copied table")
    return found[0]
