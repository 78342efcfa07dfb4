"""Tables of every mode read by Spark: by the published algorithm, as another project's reader does, and by
mirror_pump.spark; and by ClickHouse. Lake tables are partitioned, or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mirror_pump.spark
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, lake_session
from mirror_pump.testing.mirror import assert_same, lake_rows, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.clickhouse import clickhouse_rows
from tests.support.foreign_spark_reader import pinned_frame
from tests.support.table_modes import LAKE_LAG, TableModes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak


@pytest.fixture(params=[None, "30"], ids=["plain", "partitioned"])
def made(request: pytest.FixtureRequest, database: Database, warehouse: str) -> Iterator[TableModes]:
    """Tables of every mode, whose lake tables are not partitioned, or in another way than the heap."""
    with closing(ThreadTaskRunner()) as runner, duckdb_connection() as duckdb:
        yield TableModes.create(database, warehouse, runner, duckdb, lake_partition=request.param)


def correct(modes: TableModes) -> None:
    """Late rows, replaced rows and deletes on both sides of each cut-line."""
    for table in modes.registered:
        cut = table.cut if table in modes.divided else 300
        key = next(modes.keys)
        for at in (cut - 40, cut - 1, cut, cut + 40):
            table.put(at, key, "corrected")
        table.put(cut - 30, 7, "over a row")
        table.remove(cut - 20, 8)
        table.remove(cut + 20, 2)


def test_a_reader_by_others_finds_every_row_while_partitions_leave_and_corrections_are_folded(
    made: TableModes, spark: SparkSession
) -> None:
    """Nobody writes during a read, so each has to find exactly the model. The pump has work all the while: the cut-line
    and the retention line wait for the reader's pin, folds and merges do not."""
    session = lake_session(spark, made.database.dsn, made.mirror.settings.require_warehouse())
    advanced = {table.name: table.cut for table in made.divided}
    for turn in range(3):
        correct(made)
        for table in made.divided:
            table.grow()
        with made.pumping(fold_age=0.05):
            for table in made.registered:
                with pinned_frame(session, made.database, table.name) as frame:
                    for attempt in range(2):
                        rows = normalised([tuple(row) for row in frame.collect()])
                        assert_same(table.model(), rows, f"{table.name}, turn {turn}, attempt {attempt}")
            made.await_settled()
            made.await_folded()
    assert all(table.cut == advanced[table.name] + 300 for table in made.divided)
    assert made.bounded.line == made.bounded.cut - LAKE_LAG
    assert min(row[0] for row in made.bounded.model()) == made.bounded.line
    assert made.database.rows("SELECT * FROM modak.read_pins") == []


def test_mirror_pump_spark_reads_every_mode(
    made: TableModes, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole tables before and after folds, and while partitions leave; and each side by itself."""
    dsn = made.database.dsn
    correct(made)

    def read(name: str, mode: str = "seam") -> list[tuple[object, ...]]:
        with mirror_pump.spark.read(spark, f"public.{name}", mode, dsn=dsn) as frame:
            return normalised([tuple(row) for row in frame.select("at", "id", "n", "v").collect()])

    for turn in range(2):
        for table in made.divided:
            assert_same(table.model(), read(table.name), f"{table.name} in turn {turn}")
            assert_same(table.heap(), read(table.name, "heap"), f"the heap of {table.name}")
            table.grow()
        with made.pumping(fold_age=0.05):
            for table in made.divided:
                before, rows = table.model(), read(table.name)
                # Rows of the bounded table expire at some moment, before the read or behind it.
                expected = before if before == rows else table.model()
                assert_same(expected, rows, f"{table.name} while its partition leaves")
            made.await_settled()
            made.await_folded()
            made.mirror.await_frontier()
            assert_same(made.mirrored.model(), read("mirrored"), "the mirrored table")
            assert_same(made.mirrored.model(), read("mirrored", "hybrid"), "the mirrored table, hybrid")
    for table in (made.tiered, made.kept, made.bounded):
        assert_same(table.model(f"at < {table.cut}"), read(table.name, "lake"), f"the lake of {table.name}")
    assert_same(made.retained.model(), read("retained", "lake"), "the lake of a mirrored table")


def test_clickhouse_reads_the_lake_of_every_mode(
    made: TableModes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published snapshot and the table, with position deletes of folds and of expiries."""
    for _ in range(2):
        correct(made)
        for table in made.divided:
            table.grow()
        with made.pumping(fold_age=0.05, merge_bytes=0):
            made.await_folded()
            made.await_settled()
    # It reads only local files below the working directory.
    monkeypatch.chdir(tmp_path)
    for table in made.divided:
        for location in (table.published, made.mirror.location(f"public.{table.name}")):
            wanted = [row[:4] for row in lake_rows(location, made.duckdb)]
            assert clickhouse_rows(location, "at, id, n, v", monkeypatch) == sorted(wanted)
            cut = table.cut
            young = [row for row in wanted if row[0] >= cut - 45]
            found = clickhouse_rows(location, "at, id, n, v", monkeypatch, condition=f"at >= {cut - 45}")
            assert found == sorted(young), "with a condition amid a lake partition"
        below = table.model(f"at < {table.cut}")
        assert clickhouse_rows(table.published, "at, id, n, v", monkeypatch) == sorted(tuple(row) for row in below)
