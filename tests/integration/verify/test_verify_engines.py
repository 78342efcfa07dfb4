"""verify compares small tables with DuckDB and large ones with Spark; both find the same differences, in every type."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.model import TableId
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify import compare_spark
from mirror_pump.ops.verify.comparison import ComparedRows, Comparison
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine, EnginesBySize
from mirror_pump.ops.verify.verification import VerifyPhase, VerifyReport, verify
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.stream.publication import record_published
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.type_oracle import CASES, create_pool, pool_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Spark:
    """The test run's Spark in place of one that `verify` would start, which would take ten seconds."""

    spark: SparkSession
    compared: list[str] = field(default_factory=list)
    """The lake tables that were compared, by their metadata files."""

    @property
    def engine(self) -> ComparisonEngine:
        return ComparisonEngine(SparkTaskRunner(self.spark, 2), self._compare)

    def _compare(self, heap: str, lake: str, schema: LakeSchema, rows: ComparedRows) -> Comparison:
        self.compared.append(lake)
        return compare_spark.compare(self.spark, heap, lake, schema, rows)


@pytest.fixture
def by_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Spark:
    """The Spark that `verify` gets where it chooses Spark, which records the compared tables."""
    used = Spark(spark)
    monkeypatch.setattr(EnginesBySize, "_spark", property(lambda _: used.engine))
    return used


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    return Mirror.create(database, warehouse, tasks)


def limited(mirror: Mirror, **limits: Any) -> Settings:
    """The mirror's settings with these internal limits."""
    return mirror.settings.model_copy(update={"limits": InternalLimits(**limits)})


def change_unheard(mirror: Mirror, table: str, statements: list[str]) -> None:
    """Changes the heap while the table is not in the publication: as if the stream had lost the changes."""
    publication = mirror.settings.publication
    with mirror.database.connect() as connection:
        connection.execute(f'ALTER PUBLICATION "{publication}" DROP TABLE {table}'.encode())
        for statement in statements:
            connection.execute(statement.encode())
        connection.execute(f'ALTER PUBLICATION "{publication}" ADD TABLE {table}'.encode())
        ((table_id,),) = connection.execute("SELECT %s::regclass::oid::bigint", (table,)).fetchall()
        record_published(connection, mirror.settings.slot, [TableId(table_id)])


COLUMNS = 60
"""Columns per table in which every column has a difference."""

Summary = tuple[int, int, int, list[tuple[Any, ...]]]
"""Numbers of rows in the heap, in the lake, and of differing rows; and the differing columns by key."""


def summaries(report: VerifyReport) -> dict[str, Summary]:
    """Summaries by table. A value that is in a raw text column counts as its column's."""
    found = {}
    for table in report.tables:
        compared = table.comparison
        assert compared is not None, table.problem
        differences = [
            (
                int(difference["key"]["id"]),
                difference["kind"],
                sorted({name.removesuffix("__raw") for name in difference["columns"]}),
            )
            for difference in compared.differences
        ]
        found[table.table] = (compared.heap_rows, compared.lake_rows, compared.different_rows, sorted(differences))
    return found


def create_planted(
    mirror: Mirror, texts: Mapping[str, list[str | None]], table: str, cases: Sequence[int]
) -> tuple[list[str], Summary]:
    """Creates a table with a column for each of these cases, whose values in the pool are `texts`. Returns statements
    that plant a difference in each column, delete a row and insert one, and the differences that have to be found."""
    gone, new = 10_000, 10_001
    columns = ", ".join(f"c{n}" for n in cases)
    with mirror.database.connect() as connection:
        definitions = ", ".join(f"c{n} {CASES[n].type}" for n in cases)
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, {definitions})".encode())
        connection.execute(
            f"INSERT INTO {table} SELECT g, 0, {columns} FROM pool, unnest(%s::int[]) g WHERE pool.id = 0".encode(),
            ([*cases, gone],),
        )
    planted, statements = [], []
    for n in cases:
        name = f"c{n}"
        # NULL, if the type has only one value.
        others = sorted((text is None, row) for row, text in enumerate(texts[name]) if text != texts[name][0])
        if others:
            value = f"(SELECT {name} FROM pool WHERE id = {others[0][1]})"
            statements.append(f"UPDATE {table} SET {name} = {value} WHERE id = {n}")
            planted.append((n, "different", [name]))
    statements += [
        f"DELETE FROM {table} WHERE id = {gone}",
        f"INSERT INTO {table} (id, n, {columns}) SELECT {new}, 0, {columns} FROM pool WHERE id = 0",
    ]
    planted += [(gone, "extra", []), (new, "missing", [])]
    return statements, (len(cases) + 1, len(cases) + 1, len(planted), planted)


KINDS = sorted({(case.lake, bool(case.unheld)): n for n, case in reversed(list(enumerate(CASES)))}.values())
"""A case of each lake type, with a raw text column and without."""


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.unverified("the lake lacks changes on purpose")
@pytest.mark.parametrize(
    "by_spark", [pytest.param(KINDS, id="kinds"), pytest.param(range(len(CASES)), id="all", marks=pytest.mark.soak)]
)
def test_both_engines_find_each_difference_of_each_type(
    mirror: Mirror, spark: SparkSession, by_spark: Sequence[int]
) -> None:
    """A row for each type, in which only that type's column differs, a missing row and an extra one. Spark compares
    some of the types; DuckDB all, in other tables."""
    with mirror.database.connect() as connection:
        create_pool(connection, "pool")
    _, texts = pool_values(mirror.database, "pool")
    expected, statements = {}, {}
    # Spark plans several tables with a few columns each much faster than one table with all.
    for engine, chosen in (("duckdb", range(len(CASES))), ("spark", by_spark)):
        for start in range(0, len(chosen), COLUMNS):
            table = f"{engine}_{start}"
            cases = chosen[start : start + COLUMNS]
            statements[table], expected[f"public.{table}"] = create_planted(mirror, texts, table, cases)
    mirror.register(*statements)
    mirror.catch_up()
    for table, changes in statements.items():
        change_unheard(mirror, table, changes)
    planted = sum(different for _, _, different, _ in expected.values())
    assert planted >= len(CASES) + len(by_spark) - 2 + 2 * len(expected), "one value"
    of_spark = [table for table in statements if table.startswith("spark")]
    with mirror.pumping():
        assert summaries(verify(limited(mirror, verify_shown_rows=10_000))) == expected
        spark_engine = ComparisonEngine(mirror.runner, partial(compare_spark.compare, spark, shown=10_000))
        assert summaries(verify(mirror.settings, of_spark, engine=spark_engine)) == {
            f"public.{table}": expected[f"public.{table}"] for table in of_spark
        }


@pytest.mark.further
def test_the_size_decides_which_engine_compares(
    mirror: Mirror, by_spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        # A heap of one page, with as much TOAST as a large table.
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, repeat('x', 10000) FROM generate_series(1, 100) g",
    )
    mirror.register("t")
    mirror.catch_up()
    mirror.database.execute("UPDATE t SET v = 'one' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    seen: list[TableProgress] = []

    def equal(**limits: Any) -> bool:
        seen.clear()
        (table,) = verify(limited(mirror, **limits), observe=seen.append).tables
        assert table.comparison is not None
        assert (table.comparison.heap_rows, table.comparison.lake_rows) == (99, 99)
        return table.equal

    with mirror.pumping():
        assert equal()
        assert by_spark.compared == []
        assert all(progress.is_small for progress in seen)
        # More than its heap, less than heap and TOAST together.
        assert equal(verify_small_bytes=500_000)
        assert len(by_spark.compared) == 1, "its heap is large"
        assert [progress.step for progress in seen] == [
            VerifyPhase.READING, VerifyPhase.READING, VerifyPhase.READ, VerifyPhase.COMPARING, VerifyPhase.DONE
        ]  # fmt: skip
        assert [(progress.done, progress.rows) for progress in seen[:2]] == [(0, 0), (1, 99)]
        assert not any(progress.is_small for progress in seen)
        assert equal(verify_small_rows=98)
        assert len(by_spark.compared) == 2, "the lake has more rows than that"
        assert equal(verify_memory="1KiB")
        assert len(by_spark.compared) == 3, "DuckDB's memory does not suffice"
        assert "compared-by-spark" in "".join(capsys.readouterr())
        with monkeypatch.context() as patch:
            # As if the extra `sql` were not installed.
            patch.setitem(sys.modules, "duckdb", None)
            assert equal()
        assert len(by_spark.compared) == 4, "DuckDB is not installed"
