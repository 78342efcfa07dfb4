"""Iceberg's JDBC catalog in schema modak. Each table has one row, its pointer, which the caller's transaction changes.

The layout is Iceberg's JdbcCatalog schema V1, so Spark, Trino, Flink and pyiceberg read the same rows.
"""

from __future__ import annotations

from typing import Any

import psycopg

from mirror_pump.model import TableName
from sql import queries

_SQL = queries("pointers")

CATALOG = "lake"
"""Name of the catalog in its own tables and in every engine's settings."""

ENGINE_PROPERTIES = {
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "1000",
    "write.parquet.row-group-size-bytes": str(16 << 20),
    "write.parquet.compression-codec": "zstd",
}
"""Table properties for the files and commits of other engines.

The retries let their commits succeed while a pump commits every second: by default Iceberg gives up after four attempts
within some 0.4 s. The row-group size is that of the mirror's own files. Readers skip and parallelise by row group. With
Iceberg's default of 128 MiB most files have a single row group, which a single thread scans. Iceberg gives zstd only to
tables that it makes itself, others get gzip: Arrow and DuckDB take three times as long to read that, and it is larger.
"""

Executor = psycopg.Connection[Any] | psycopg.Cursor[Any]
"""What runs the statements. The caller owns the transaction."""


def load_pointer(executor: Executor, namespace: str, table: str, catalog: str = CATALOG) -> str | None:
    """The table's current metadata location. None if the catalog does not have the table."""
    row = executor.execute(
        _SQL["load"],
        (catalog, namespace, table),
    ).fetchone()
    return None if row is None else str(row[0])


def insert_pointer(executor: Executor, namespace: str, table: str, location: str, catalog: str = CATALOG) -> None:
    """Inserts a new table. Raises psycopg's UniqueViolation if it already exists."""
    executor.execute(
        _SQL["insert"],
        (catalog, namespace, table, location),
    )


def replace_pointer(executor: Executor, namespace: str, table: str, location: str, catalog: str = CATALOG) -> None:
    """Puts another table in the place of one that the catalog has."""
    executor.execute(_SQL["replace"], (location, catalog, namespace, table))


def swap_pointer(executor: Executor, namespace: str, table: str, old: str, new: str, catalog: str = CATALOG) -> bool:
    """Moves the table's pointer from `old` to `new`. Returns False if it is not at `old`. Then rebase and try again."""
    cursor = executor.execute(
        _SQL["swap"],
        (new, catalog, namespace, table, old),
    )
    return cursor.rowcount == 1


def rename_pointer(executor: Executor, name: TableName, new_name: TableName, catalog: str = CATALOG) -> str | None:
    """Gives the table another name. Returns its current metadata location; None if the catalog does not have the
    table."""
    row = executor.execute(
        _SQL["rename"],
        (new_name.schema, new_name.name, catalog, name.schema, name.name),
    ).fetchone()
    return None if row is None else row[0]


def delete_pointer(executor: Executor, namespace: str, table: str, catalog: str = CATALOG) -> bool:
    """Removes the table from the catalog. Its files stay. Returns False if the catalog did not have it."""
    cursor = executor.execute(
        _SQL["delete"],
        (catalog, namespace, table),
    )
    return cursor.rowcount == 1


def ensure_namespace(executor: Executor, namespace: str, catalog: str = CATALOG) -> bool:
    """Creates the namespace, so that engines see it even without tables. JdbcCatalog writes the same property. Returns
    False if it has been created before."""
    return executor.execute(_SQL["ensure_namespace"], (catalog, namespace)).rowcount == 1


def delete_namespace(executor: Executor, namespace: str, catalog: str = CATALOG) -> bool:
    """Forgets a namespace, unless the catalog has tables or views in it. Returns False if nothing was there."""
    return executor.execute(_SQL["delete_namespace"], (catalog, namespace)).rowcount > 0
