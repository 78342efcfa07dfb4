"""Reads mirrored tables by engines that we did not write, for tests and the demo."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg

from mirror_pump.engine.session import jdbc_catalog
from mirror_pump.ops.duckdb.duckdb_connection import open_duckdb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_opening = threading.Lock()
_opened: list[duckdb.DuckDBPyConnection] = []
"""This process's DuckDB, once there is one."""


def metadata_location(dsn: str, table: str) -> str:
    """The URI of the metadata file that the catalog points at for `schema.name`; LookupError if it knows none."""
    namespace, _, name = table.rpartition(".")
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT metadata_location FROM modak.iceberg_tables"
            " WHERE catalog_name = 'lake' AND table_namespace = %s AND table_name = %s",
            (namespace, name),
        ).fetchone()
    if row is None:
        raise LookupError(f"the lake has no table {table}")
    return str(row[0])


def lake_session(spark: SparkSession, dsn: str, warehouse: str) -> SparkSession:
    """A session beside `spark`, in the same JVM, whose catalog `lake` is the mirror of the database `dsn`.

    JdbcCatalog looks tables up under the name that Spark calls the catalog by, so it must be `lake` for every
    database; a session of its own keeps it apart from other databases' (catalogs are cached per session).
    """
    session = spark.newSession()
    for key, value in jdbc_catalog("lake", dsn, warehouse).items():
        session.conf.set(key, value)
    return session


def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """DuckDB in memory, in time zone UTC, with the Iceberg extension, which comes from PyPI: nothing is downloaded.

    A connection of one's own to the one instance of this process, since loading the extension takes 0.17 s of CPU.
    What is to be nobody else's must be TEMPorary. No file's content is kept from one query to the next.
    """
    with _opening:
        if _opened:
            try:
                return _fresh(_opened[0])
            except duckdb.Error:
                # An internal error in some query leaves an instance that answers nothing any more.
                _opened.clear()
        instance = open_duckdb()
        instance.execute("SET GLOBAL enable_external_file_cache = false")
        # Users' own DuckDB reads the lake too, with its stock settings.
        instance.execute("RESET GLOBAL disabled_optimizers")
        _opened.append(instance)
        return _fresh(instance)


def _fresh(instance: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    connection = instance.cursor()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_duckdb(location: str, query: str = "SELECT * FROM lake") -> pa.Table:
    """What DuckDB finds in the Iceberg table with the metadata file `location`; the query calls it `lake`."""
    with duckdb_connection() as connection:
        connection.execute(f"CREATE TEMP VIEW lake AS SELECT * FROM iceberg_scan('{location}')")
        return connection.execute(query).to_arrow_table()


def read_spark(session: SparkSession, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """Every row of `lake.<table>` by Spark, as tuples; `session` is from lake_session."""
    rows = session.sql(f"SELECT {columns} FROM lake.{table}").collect()
    return [tuple(row) for row in rows]
