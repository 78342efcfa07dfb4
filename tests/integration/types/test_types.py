"""Every type and its edge cases: heap -> copy and heap -> stream -> DuckDB, Spark, pyarrow, equal to what Postgres
prints.

The oracle is Postgres itself: a value's text as libpq delivers it, and for numbers since 1970 its own arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.type_oracle import (
    CASES,
    by_duckdb,
    by_pyarrow,
    by_spark,
    create_pool,
    lake_types,
    pool_values,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("copied", "streamed")
ENGINES = ("duckdb", "spark", "pyarrow")


class UnaffectedDatabase(Database):
    """A database whose settings do not apply to the test's own sessions."""

    @property
    def dsn(self) -> str:
        return f"{super().dsn}?options=-c%20default_transaction_read_only%3Doff%20-c%20statement_timeout%3D0"


@dataclass(frozen=True)
class TypeScene:
    """The values in the heap, and those that each engine found in the lake: by table, column and row, None for NULL."""

    expected: dict[str, list[Any]]
    texts: dict[str, list[str | None]]
    found: dict[tuple[str, str], dict[str, list[Any]]]
    lake_types: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def scene(
    postgres: EmbeddedPostgres, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TypeScene]:
    """Two tables with a column for each case, one filled before its copy and one while the pump runs."""
    name = "t_types"
    postgres.create_database(name)
    database = Database(postgres, name)
    warehouse = tmp_path_factory.mktemp("types") / "warehouse"
    warehouse.mkdir()
    try:
        yield _played(database, warehouse, spark)
    finally:
        postgres.drop_database(name)


def _played(
    database: Database, warehouse: Path, spark: SparkSession, settings: Sequence[tuple[str, str]] = ()
) -> TypeScene:
    with database.connect() as connection:
        create_pool(connection, "copied")
        connection.execute("CREATE TABLE streamed (LIKE copied INCLUDING ALL)")
        for name, value in settings:
            # For sessions from now on. The values above were read before.
            alter = sql.SQL("ALTER DATABASE {} SET {} = {}")
            connection.execute(alter.format(sql.Identifier(database.name), sql.Identifier(name), sql.SQL(value)))
    database.reconnect()
    plain = Database(database.server, database.name)
    mirror = Mirror.create(database, warehouse.as_uri(), ThreadTaskRunner(), dsn=plain.dsn)
    with mirror.pumping():
        mirror.register(*TABLES)
        mirror.await_live(*(f"public.{table}" for table in TABLES))
        # Row by row, so that a value's neighbours are NULLs, and not other values of its column.
        database.execute("INSERT INTO streamed SELECT * FROM copied WHERE id % 2 = 0")
        mirror.await_frontier()
        database.execute("INSERT INTO streamed SELECT * FROM copied WHERE id % 2 = 1")
        mirror.await_frontier()
        errors = {table: mirror.error(f"public.{table}") for table in TABLES}
        assert errors == dict.fromkeys(TABLES, "")
        expected, texts = pool_values(database, "copied")
        types = {
            table: lake_types(LakeTable.load(mirror.location(f"public.{table}"), StorageOptions())) for table in TABLES
        }
        with database.connect() as connection:
            # Spark's catalog is another client of the database, whose sessions have the user's settings.
            connection.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(database.name)))
        database.reconnect()
        session = lake_session(spark, plain.dsn, warehouse.as_uri())
        found = {}
        for table in TABLES:
            location = mirror.location(f"public.{table}")
            found[table, "duckdb"] = by_duckdb(location, types[table])
            found[table, "spark"] = by_spark(session, table, types[table])
            found[table, "pyarrow"] = by_pyarrow(location, types[table])
        assert assert_verified(plain) == len(TABLES)
    return TypeScene(expected, texts, found, types)


_ODD_SETTINGS = (
    ("DateStyle", "'SQL, DMY'"),
    ("IntervalStyle", "'iso_8601'"),
    ("TimeZone", "'Asia/Kolkata'"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "'escape'"),
    ("client_encoding", "'LATIN1'"),
    ("quote_all_identifiers", "on"),
    ("standard_conforming_strings", "off"),
    ("array_nulls", "off"),
    ("xmlbinary", "'hex'"),
    ("transform_null_equals", "on"),
    ("search_path", "public, pg_temp"),
    ("default_transaction_isolation", "'serializable'"),
    ("default_transaction_read_only", "on"),
    ("statement_timeout", "'1ms'"),
    ("row_security", "on"),
)


@pytest.mark.further
def test_settings_of_the_database_change_no_byte(
    postgres: EmbeddedPostgres, spark: SparkSession, scene: TypeScene, tmp_path: Path
) -> None:
    postgres.create_database("t_types_settings")
    try:
        other = _played(UnaffectedDatabase(postgres, "t_types_settings"), tmp_path, spark, _ODD_SETTINGS)
    finally:
        postgres.drop_database("t_types_settings")
    assert other.texts == scene.texts
    assert other.lake_types == scene.lake_types
    assert other.found == scene.found


@pytest.mark.parametrize("n", range(len(CASES)), ids=[case.type for case in CASES])
def test_copy_and_stream_keep_every_value(scene: TypeScene, n: int) -> None:
    name, case = f"c{n}", CASES[n]
    for table in TABLES:
        assert scene.lake_types[table][name] == case.lake
        for engine in ENGINES:
            assert scene.found[table, engine][name] == scene.expected[name], f"{table} by {engine}"
            raw = scene.found[table, engine].get(f"{name}__raw")
            if case.unheld:
                texts = [None] * len(case.values) + scene.texts[name][len(case.values) :]
                assert raw == texts, f"raw text of {table} by {engine}"
            else:
                assert raw is None
