"""Reads mirrored tables with independent engines, for tests and the demo."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg

from mirror_pump.database.catalog_cursor import cursor_for
from mirror_pump.database.mirror_dsn import mirror_of
from mirror_pump.engine.spark_runtime.session import CATALOG, FORKS, jdbc_catalog
from mirror_pump.ops.duckdb_connection import open_duckdb
from sql.mirror_names import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_opening = threading.Lock()
_opened: list[duckdb.DuckDBPyConnection] = []
"""This process's DuckDB instance, once there is one."""


def metadata_location(dsn: str, table: str) -> str:
    """URI of the metadata file that the catalog has for `schema.name`. Raises LookupError for an unknown table."""
    with psycopg.connect(dsn, autocommit=True, cursor_factory=cursor_for(mirror_of(dsn))) as connection:
        return metadata_location_on(connection, table)


def metadata_location_on(connection: psycopg.Connection[Any], table: str) -> str:
    """The same, over the caller's connection."""
    namespace, _, name = table.rpartition(".")
    row = connection.execute(
        f"SELECT metadata_location FROM {SCHEMA}.iceberg_tables"
        " WHERE catalog_name = 'lake' AND table_namespace = %s AND table_name = %s",
        (namespace, name),
    ).fetchone()
    if row is None:
        raise LookupError(f"the lake has no table {table}")
    return str(row[0])


def lake_session(spark: SparkSession, dsn: str, warehouse: str) -> SparkSession:
    """A session in the JVM of `spark` whose catalog `lake` is the mirror of the database `dsn`; also that of its forks.

    JdbcCatalog looks up tables by the catalog's name in Spark, so it must be `lake` for every database. A separate
    session keeps it apart from other databases' catalogs, which are cached per session.
    """
    session = spark.newSession()
    for name in (CATALOG, FORKS):
        for key, value in jdbc_catalog(name, dsn, warehouse).items():
            session.conf.set(key, value)
    return session


def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """DuckDB in memory, in time zone UTC, with the Iceberg extension from PyPI, so that nothing is downloaded.

    Returns a new connection to the process's only instance, since loading the extension takes 0.17 s of CPU. Objects
    that only this connection should see must be TEMPORARY. File contents are not cached between queries.
    """
    with _opening:
        if _opened:
            try:
                return _fresh(_opened[0])
            except duckdb.Error:
                # After an internal error in a query, an instance no longer answers anything.
                _opened.clear()
        instance = open_duckdb()
        instance.execute("SET GLOBAL enable_external_file_cache = false")
        # Users read the lake with DuckDB's default settings.
        instance.execute("RESET GLOBAL disabled_optimizers")
        _opened.append(instance)
        return _fresh(instance)


def _fresh(instance: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    connection = instance.cursor()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_duckdb(location: str, query: str = "SELECT * FROM lake") -> pa.Table:
    """The result of a query by DuckDB on the Iceberg table with this metadata file; the query names it `lake`."""
    with duckdb_connection() as connection:
        connection.execute(f"CREATE TEMP VIEW lake AS SELECT * FROM iceberg_scan('{location}')")
        return connection.execute(query).to_arrow_table()


def read_spark(session: SparkSession, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """All rows of `lake.<table>`, read by Spark, as tuples; `session` is from lake_session."""
    rows = session.sql(f"SELECT {columns} FROM lake.{table}").collect()
    return [tuple(row) for row in rows]
