"""Other engines' catalogs work on schema modak as the migrations create it: one engine creates a table, the other reads
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, metadata_location, read_duckdb, read_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def catalog(database: Database) -> Database:
    with database.connect() as connection:
        migrate(connection)
    return database


def _pyiceberg(database: Database, warehouse: str) -> SqlCatalog:
    url = libpq_access(database.dsn).sqlalchemy_url()
    return SqlCatalog("lake", uri=url, warehouse=warehouse, init_catalog_tables="false")


def test_spark_and_pyiceberg_share_the_catalog(catalog: Database, lake: SparkSession, warehouse: str) -> None:
    lake.sql("CREATE NAMESPACE lake.public")
    lake.sql("CREATE TABLE lake.public.by_spark (id bigint NOT NULL, note string) USING iceberg")
    lake.sql("INSERT INTO lake.public.by_spark VALUES (1, 'one'), (2, NULL)")
    other = _pyiceberg(catalog, warehouse)
    try:
        assert other.list_tables("public") == [("public", "by_spark")]
        found = other.load_table("public.by_spark").scan().to_arrow()
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
            {"id": 1, "note": "one"},
            {"id": 2, "note": None},
        ]
        made = other.create_table("public.by_pyiceberg", schema=pa.schema([("id", pa.int64()), ("note", pa.string())]))
        made.append(pa.table({"id": pa.array([7], pa.int64()), "note": ["sieben"]}))
    finally:
        other.engine.dispose()
    assert read_spark(lake, "public.by_pyiceberg") == [(7, "sieben")]
    assert catalog.rows("SELECT catalog_name, table_name, iceberg_type FROM modak.iceberg_tables ORDER BY 2") == [
        ("lake", "by_pyiceberg", "TABLE"),
        ("lake", "by_spark", "TABLE"),
    ]
    assert catalog.rows("SELECT count(*) FROM pg_class WHERE relname = 'iceberg_tables'") == [(1,)], "no second catalog"
    location = metadata_location(catalog.dsn, "public.by_spark")
    assert read_duckdb(location, "SELECT count(*), min(note) FROM lake").to_pylist() == [
        {"count_star()": 2, "min(note)": "one"}
    ]
    with pytest.raises(LookupError, match=r"public\.none"):
        metadata_location(catalog.dsn, "public.none")


def test_a_pointer_moved_by_sql_is_seen_at_once(catalog: Database, lake: SparkSession) -> None:
    """The publish transaction relies on this: readers ask the catalog, and remember no table."""
    lake.sql("CREATE NAMESPACE lake.public")
    lake.sql("CREATE TABLE lake.public.t (id bigint) USING iceberg")
    lake.sql("INSERT INTO lake.public.t VALUES (1)")
    before = metadata_location(catalog.dsn, "public.t")
    lake.sql("INSERT INTO lake.public.t VALUES (2)")
    assert len(read_spark(lake, "public.t")) == 2
    with psycopg.connect(catalog.dsn) as connection:
        connection.execute("UPDATE modak.iceberg_tables SET metadata_location = %s", (before,))
    assert read_spark(lake, "public.t") == [(1,)]


def test_databases_are_kept_apart_in_one_spark(catalog: Database, new_database: object, spark: SparkSession,
                                               lake: SparkSession, warehouse: str) -> None:  # fmt: skip
    assert callable(new_database)
    second: Database = new_database()
    with second.connect() as connection:
        migrate(connection)
    other = lake_session(spark, second.dsn, warehouse + "/second")
    lake.sql("CREATE NAMESPACE lake.only_here")
    assert [row[0] for row in lake.sql("SHOW NAMESPACES IN lake").collect()] == ["only_here"]
    assert other.sql("SHOW NAMESPACES IN lake").collect() == []
