"""Tiered tables whose lake tables are partitioned, through copies, folds, ingests and expiries: every file has one lake
partition, and every engine finds all rows and opens the files of the lake partitions that it needs only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.laid_out_tables import COLUMNS, LAYOUTS, LaidOutTable, SnapshotFiles
from tests.support.retention_table import run

pytestmark = pytest.mark.further

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_files(session: SparkSession, table: str, condition: str) -> tuple[list[Row], int]:
    """The rows of `main` that meet a condition, by Spark, and the number of data files that it opens."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frame = session.sql(f"SELECT {COLUMNS} FROM lake.public.{table} WHERE {condition}")
    rows = [tuple(row) for row in frame.collect()]
    leaf: Any = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return normalised(rows), int(leaf.metrics().apply("resultDataFiles").value())


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Iterator[Mirror]:
    with closing(ThreadTaskRunner()) as tasks:
        yield Mirror.create(database, warehouse, tasks, retention_interval=0.1, fold_age=0.05, merge_bytes=0)


@pytest.mark.further
@pytest.mark.parametrize(
    ("chosen", "with_spark"),
    [
        pytest.param("month", False, id="month"),
        *(pytest.param(name, True, id=f"{name} by Spark too", marks=pytest.mark.soak) for name in LAYOUTS),
    ],
)
def test_every_file_keeps_its_lake_partition_and_every_engine_the_rows(
    request: pytest.FixtureRequest, mirror: Mirror, database: Database, tmp_path: Path, chosen: str, with_spark: bool
) -> None:
    """A table with lake retention and one that keeps its heap: copied, corrected, folded, ingested into, expired."""
    layout = LAYOUTS[chosen]
    shed, kept = (LaidOutTable(database, mirror, layout, name, name == "shed") for name in ("shed", "kept"))
    tables = (shed, kept)
    for table in tables:
        table.create()
    width = layout.width
    unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
    with mirror.pumping():
        for table in tables:
            await_true(table.settled, 60, f"{table.name} is settled")
        for turn in range(2):
            for table in tables:
                SnapshotFiles(table.published).assert_divided()
            cut = shed.cut * width
            for table in tables:
                for back in (1, 2, width // 2, width - 1):
                    table.put(cut - back, 9000 + turn, "corrected")
                table.put(cut - 1, cut - 1, "over a row")
                table.remove(cut - 3, cut - 3)
                table.put(cut + 1, 9000 + turn, "young")
                table.ingest(tmp_path, range(cut - width, cut + 3, max(1, width // 20)), 8000 + turn)
            await_true(lambda: database.rows(unfolded) == [(0,)], 60, "all is folded")
            for table in tables:
                assert_same(table.model(), table.whole(), f"{table.name}, turn {turn}")
                table.grow()
            for table in tables:
                await_true(table.settled, 60, f"{table.name} is settled")
    for table in tables:
        assert_same(table.model(), table.whole(), f"{table.name} at its end")
        below = table.model(below_cut=True)
        for location in (table.published, mirror.location(f"public.{table.name}")):
            files = SnapshotFiles(location)
            assert files.assert_divided() > 0, "nothing was deleted by position"
            assert_same(below, files.rows(), f"{table.name} by pyiceberg")
            assert_same(below, lake_rows(location), f"{table.name} by DuckDB")
            _assert_pruned(table, files, below)
        if with_spark:
            spark: SparkSession = request.getfixturevalue("spark")
            session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
            _assert_pruned_by_spark(table, session, below)
    with database.session() as connection:
        heap = run(connection, f"SELECT {COLUMNS} FROM kept").fetchall()
    assert_same(normalised(heap), kept.model(), "the heap is whole")


def _boundaries(table: LaidOutTable, files: SnapshotFiles) -> list[tuple[str, Any]]:
    """Keys at which a lake partition begins, as PostgreSQL prints them, with that partition."""
    texts = table.texts(range(table.cut * table.layout.width))
    with table.database.session() as connection:
        run(connection, "SET TimeZone = 'UTC'")
        query = f"SELECT {table.layout.origin} + g * {table.layout.unit} FROM generate_series(0, {len(texts) - 1}) g"
        values = files.internal([value for (value,) in run(connection, query).fetchall()])
    found = []
    for text, former, value in zip(texts[1:], values, values[1:], strict=False):
        if files.transform(former) != files.transform(value):
            found.append((text, files.transform(value)))
    return found


def _conditions(key: str, text: str) -> dict[str, str]:
    return {operator: f"{key} {operator} {text}" for operator in (">=", "<")}


def _wanted(table: LaidOutTable, rows: list[Row], text: str, operator: str) -> list[Row]:
    """Those of the rows whose keys are on one side of a boundary."""
    with table.database.session() as connection:
        run(connection, "SET TimeZone = 'UTC'")
        row = run(connection, f"SELECT '{text}'::{table.layout.type}").fetchone()
    assert row is not None
    ((bound,),) = normalised([row])
    return [row for row in rows if (row[0] >= bound) == (operator == ">=")]


def _assert_pruned(table: LaidOutTable, files: SnapshotFiles, below: list[Row]) -> None:
    """Exactly at each boundary of lake partitions, no file of the other side is opened."""
    present = {*files.planned("id >= 0 or id < 0")}
    boundaries = [(text, partition) for text, partition in _boundaries(table, files) if partition in present]
    assert boundaries
    for text, partition in boundaries:
        value = (
            text if table.layout.type == "bigint" else f"'{text.replace(' ', 'T')}:00'" if ":" in text else f"'{text}'"
        )
        for operator, condition in _conditions("at", value).items():
            assert files.planned(condition) == {
                other for other in present if (other >= partition) == (operator == ">=")
            }, condition
            assert files.rows(condition) == _wanted(table, below, text, operator)


def _assert_pruned_by_spark(table: LaidOutTable, session: SparkSession, below: list[Row]) -> None:
    files = SnapshotFiles(table.mirror.location(f"public.{table.name}"))
    rows, opened = spark_files(session, table.name, "true")
    assert_same(below, rows, f"{table.name} by Spark")
    by_partition = [task.file.partition[0] for task in files.table.scan().plan_files()]
    assert opened == len(by_partition)
    for text, partition in _boundaries(table, files):
        literal = table.layout.literal.format(text).replace("TIMESTAMPTZ", "TIMESTAMP")
        for operator, condition in _conditions("at", literal).items():
            rows, opened = spark_files(session, table.name, condition)
            assert_same(_wanted(table, below, text, operator), rows, f"{condition} by Spark")
            assert opened == sum((other >= partition) == (operator == ">=") for other in by_partition), condition
