"""Names that Postgres allows and other engines may not handle, and as many columns as possible: read by three
engines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from psycopg import sql

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror, Row, assert_same, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.local_files import path_of

pytestmark = pytest.mark.further

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = "l" * 62
COLUMNS = (
    f"{LONG}K", f"{LONG}q", "ü" * 31, "a.b", "a b", "select", "a\nb", 'quo"te', "back`tick", "ta\tb", "1", "%", "%s",
    "*", "{x}", "a,b", "'q'", "\\", "İ", "element", "_metadata", "filename", "file_row_number", "rowid", "_change_type",
)  # fmt: skip
"""All columns but the key, which is named `Key.`. The longest names have 63 bytes and differ in the last one."""


def by_spark(session: SparkSession, schema: str, table: str) -> list[Row]:
    quoted = ".".join(f"`{name.replace('`', '``')}`" for name in (schema, table))
    return normalised([tuple(row) for row in session.sql(f"SELECT * FROM lake.{quoted}").collect()])


def by_pyarrow(location: str) -> list[Row]:
    """The rows in the data files. For a table without deletes, these are its rows."""
    lake = LakeTable.load(location, StorageOptions())
    assert lake.delete_files == 0
    rows: list[Row] = []
    for file in lake.live_data_files():
        path = path_of(file.path)
        table = pq.read_table(path)
        assert table.column_names == [field.name for field in lake.schema.fields]
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return normalised(rows)


def test_names_of_columns(database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner) -> None:
    """In a schema and a table with similar names, through copy, stream and a rename, and with a raw text column."""
    schema, table = "Sch.ema ü/..", "T able\n/" + "t" * 50
    name = sql.Identifier(schema, table)
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(column)) for column in COLUMNS)
    mirror = Mirror.create(database, warehouse, tasks)
    with database.connect() as connection:

        def run(text: str) -> None:
            connection.execute(sql.SQL(text).format(name=name, columns=columns))

        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        run('CREATE TABLE {name} ({columns}, "Key." int PRIMARY KEY, "N.um" numeric(5,1))')
        run('INSERT INTO {name} ("Key.", "a.b", "%s", "1") SELECT g, g, g, g FROM generate_series(1, 20) g')
        with mirror.pumping():
            mirror.register(name.as_string(connection))
            mirror.await_live(f"{schema}.{table}")
            run('UPDATE {name} SET "a.b" = \'new\', "N.um" = \'NaN\' WHERE "Key." < 5')
            run('UPDATE {name} SET "Key." = -"Key.", "%" = \'moved\' WHERE "Key." > 15')
            run('DELETE FROM {name} WHERE "Key." = 10')
            run('ALTER TABLE {name} RENAME "a.b" TO "A.B."')
            run('INSERT INTO {name} ("Key.", "A.B.", "*") VALUES (100, \'x\', \'y\')')
            mirror.await_frontier()
        heap = normalised(
            connection.execute(sql.SQL("SELECT *, nullif(\"N.um\", 'NaN') FROM {}").format(name)).fetchall()
        )
    wanted = normalised(
        [(*row[:-2], row[-1], None if row[-2] is None or row[-2].is_finite() else "NaN") for row in heap]
    )
    assert_same(wanted, mirror.lake(f"{schema}.{table}"), "by DuckDB")
    session = lake_session(spark, database.dsn, warehouse)
    assert_same(wanted, by_spark(session, schema, table), "by Spark")


@pytest.mark.soak
def test_as_many_columns_as_there_can_be(
    database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner
) -> None:
    """1,600 columns, after some were dropped: attribute numbers and positions among the columns differ."""
    kinds = ("int", "smallint", "boolean", "text")
    database.execute("CREATE TABLE wide (id int)", "CREATE TABLE holes (gone0 int, id int)")
    with database.connect() as connection:

        def run(text: str) -> None:
            connection.execute(text.encode())

        added = ", ".join(f"ADD c{number} {kinds[number % 4]}" for number in range(1, 1600))
        run(f"ALTER TABLE wide {added}, ADD PRIMARY KEY (id)")
        added = ", ".join(
            f"ADD {'gone' if number % 3 == 0 else 'c'}{number} {kinds[number % 4]}" for number in range(3, 1601)
        )
        run(f"ALTER TABLE holes {added}")
        dropped = ", ".join(f"DROP gone{number}" for number in range(0, 1601, 3))
        run(f"ALTER TABLE holes {dropped}, ADD PRIMARY KEY (id)")
        run("INSERT INTO wide (id, c1597, c1598, c4, c7) VALUES (1, 1, true, 4, 't'), (2, NULL, NULL, NULL, NULL)")
        run("INSERT INTO holes (id, c1597, c1600, c4, c7) VALUES (1, 1, 0, 4, 't')")
        mirror = Mirror.create(database, warehouse, tasks)
        with mirror.pumping():
            mirror.register("wide", "holes")
            mirror.await_live("public.wide", "public.holes")
            run("INSERT INTO wide (id, c1599, c4, c7) VALUES (3, 'x', 9, ''), (4, NULL, NULL, NULL)")
            run("INSERT INTO holes (id, c1600, c4, c7) VALUES (3, 7, 9, ''), (4, NULL, NULL, NULL)")
            mirror.await_frontier()
            assert mirror.error("public.wide") == mirror.error("public.holes") == ""
            mirror.assert_equal("public.wide", "public.holes")
            assert_same(
                mirror.heap("wide"),
                by_spark(lake_session(spark, database.dsn, warehouse), "public", "wide"),
                "by Spark",
            )
            for table in ("wide", "holes"):
                assert_same(mirror.heap(table), by_pyarrow(mirror.location(f"public.{table}")), f"{table} by pyarrow")
            run("UPDATE wide SET c2 = false, c1599 = 'u' WHERE id = 1")
            run("UPDATE holes SET id = 5, c1600 = 1 WHERE id = 1")
            run("DELETE FROM wide WHERE id = 4")
            run("ALTER TABLE holes DROP c1600")
            run("INSERT INTO holes (id, c1597) VALUES (6, 6)")
            mirror.await_frontier()
            mirror.assert_equal("public.wide", "public.holes")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ('"Id" int PRIMARY KEY, v text, "V" text', "columns v and V of public.t differ in case only"),
        ('id int PRIMARY KEY, "ſo" text, "SO" text', "differ in case only"),
        (f'id int PRIMARY KEY, "{LONG}k" text, "{LONG}K" text', "differ in case only"),
        ('id int PRIMARY KEY, "_Deleted" boolean', "column _Deleted of public.t has a name that Iceberg reserves"),
    ],
)
def test_names_that_spark_would_refuse(
    database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner, columns: str, message: str
) -> None:
    """The names are refused, and the suggested remedy works."""
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE t ({columns})".encode())
        connection.execute(b"INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    with pytest.raises(TableError, match=message) as refused:
        mirror.register("t")
    left_out = columns.rpartition('"')[0].rpartition('"')[2]
    assert f"--exclude-column {shlex.quote(left_out)}" in refused.value.remedy
    mirror.register("t", choices=ColumnChoices({}, frozenset({left_out})))
    mirror.catch_up()
    rows = by_spark(lake_session(spark, database.dsn, warehouse), "public", "t")
    assert [row[0] for row in rows] == [1]


def test_a_name_that_collides_later_fails_the_table(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY, v text)")
    mirror = Mirror.create(database, warehouse, tasks)
    with mirror.pumping():
        mirror.register("t", "u")
        mirror.await_live("public.t", "public.u")
        database.execute(
            "INSERT INTO t VALUES (1, 'a')",
            'ALTER TABLE t RENAME v TO w; ALTER TABLE t ADD "V" text',
            "INSERT INTO t VALUES (2, 'b', 'c')",
            'ALTER TABLE u ADD "V" text',
            "INSERT INTO u VALUES (1, 'a', 'b')",
            "INSERT INTO t VALUES (3)",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert mirror.state("public.u") == "failed"
        assert "columns v and V of public.u differ in case only" in mirror.error("public.u")
    mirror.assert_sound()
