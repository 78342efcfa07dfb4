"""The demo's measurements, and the summary that it prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from mirror_pump.testing.lake import metadata_location


@dataclass(frozen=True)
class Check:
    """The four sums in the lake at one frontier."""

    frontier: int
    accounts: int
    tellers: int
    branches: int
    history: int
    transactions: int
    seconds: float
    """Seconds that Spark took."""

    @property
    def equal(self) -> bool:
        return self.accounts == self.tellers == self.branches == self.history


@dataclass
class DemoFigures:
    """What the summary shows."""

    copied_rows: int = 0
    copy_seconds: float = 0.0
    load_seconds: float = 0.0
    tps: float = 0.0
    lags: list[float] = field(default_factory=list)
    drain_seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    verify: dict[str, Any] = field(default_factory=dict)
    verify_seconds: float = 0.0
    commits: int = 0
    changes: int = 0
    status: dict[str, Any] = field(default_factory=dict)


def print_summary(console: Console, figures: DemoFigures, seconds: int) -> None:
    """Two tables: the mirrored tables, and what happened to them in how long."""
    tables = Table(title="the mirror", title_justify="left", title_style="bold", box=None, header_style="dim")
    tables.add_column("table", no_wrap=True)
    for heading in ("rows in heap", "rows in lake", "equal", "files", "delete files"):
        tables.add_column(heading, justify="right")
    contents = {table["table"]: table for table in figures.status["tables"]}
    for table in figures.verify["tables"]:
        content = contents[table["table"]]
        tables.add_row(
            table["table"], f"{table['heap_rows']:,}", f"{table['lake_rows']:,}", "yes" if table["equal"] else "NO",
            f"{content['data_files']:,}", f"{content['delete_files']:,}",
        )  # fmt: skip
    facts = Table(show_header=False, box=None)
    facts.add_column(style="bold")
    facts.add_column()
    lags = sorted(figures.lags) or [0.0]
    for name, value in (
        ("initial copy", f"{figures.copied_rows:,} rows in {figures.copy_seconds:.1f} s, Spark's start included"),
        ("load", f"{figures.tps:,.0f} transactions/s for {seconds} s"),
        ("mirrored", f"{figures.changes:,} changes, {figures.changes / figures.load_seconds:,.0f}/s"),
        ("commits", f"{figures.commits:,}, each of all four tables at once"),
        ("lag", (f"median {lags[len(lags) // 2]:.2f} s, 99 of 100 below {lags[int(len(lags) * 0.99)]:.2f} s"
                 " [dim](two Sparks on this machine)[/dim]")),
        ("after the load", f"the frontier had passed its end {figures.drain_seconds:.1f} s later"),
        ("proved", (f"four equal sums at {len({check.frontier for check in figures.checks})} frontiers; "
                   f"all rows in {figures.verify_seconds:.1f} s")),
        ("frontier", figures.verify["frontier"]),
    ):  # fmt: skip
        facts.add_row(name, value)
    console.print()
    console.print(tables)
    console.print()
    console.print(facts)
    console.print()


def print_queries(console: Console, dsn: str) -> None:
    """Lines that work after the demo, when its PostgreSQL is gone: by the metadata files, without the catalog."""
    small, large = (metadata_location(dsn, f"public.{name}") for name in ("pgbench_branches", "pgbench_accounts"))
    write = console.out
    write("Query it, in .venv/bin/python, from DuckDB (elsewhere: INSTALL iceberg; LOAD iceberg;):")
    write("  from mirror_pump.testing.lake import duckdb_connection")
    write(f"  duckdb_connection().sql(\"FROM iceberg_scan('{small}') ORDER BY bid\").show()")
    write("and the largest one from Spark (DuckDB reads it as well; its deletes are position deletes):")
    write("  from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session")
    write(f"  table = spark_session(SparkSettings()).read.format('iceberg').load('{large}')")
    write("  table.selectExpr('count(*)', 'sum(abalance)').show()")
    write("A mirror of your own: mirror-pump connect --engine spark|duckdb|pyiceberg|trino prints its settings.")
