"""Iceberg's JDBC catalog in schema modak, through the caller's own transaction: one row per table is its pointer.

The layout is Iceberg's JdbcCatalog schema V1, so Spark, Trino, Flink and pyiceberg read the same rows.
"""

from __future__ import annotations

from typing import Any

import psycopg

CATALOG = "lake"
"""The catalog's name in its tables, and in every engine's settings."""

ENGINE_PROPERTIES = {
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "1000",
    "write.parquet.row-group-size-bytes": str(16 << 20),
}
"""Table properties for what other engines write. Their commits get through beside a pump that commits every second: by
default Iceberg gives up after four tries, of some 0.1 s each. Their files have row groups like ours: readers skip and
share work by row group, and a file of one group, which 128 MiB make of most, is scanned by one thread."""

Executor = psycopg.Connection[Any] | psycopg.Cursor[Any]
"""Where the statements run: the caller decides on the transaction."""

_ROW = "catalog_name = %s AND table_namespace = %s AND table_name = %s"
# V1 marks tables; rows from before V1 have NULL. A view of the same name is not ours to touch.
_IS_TABLE = "(iceberg_type = 'TABLE' OR iceberg_type IS NULL)"


def load_pointer(executor: Executor, namespace: str, table: str) -> str | None:
    """The table's current metadata location; None if the catalog does not have the table."""
    row = executor.execute(
        f"SELECT metadata_location FROM modak.iceberg_tables WHERE {_ROW} AND {_IS_TABLE}",
        (CATALOG, namespace, table),
    ).fetchone()
    return None if row is None else str(row[0])


def insert_pointer(executor: Executor, namespace: str, table: str, location: str) -> None:
    """Enters a new table. psycopg's UniqueViolation if it exists already."""
    executor.execute(
        "INSERT INTO modak.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location,"
        " previous_metadata_location, iceberg_type) VALUES (%s, %s, %s, %s, NULL, 'TABLE')",
        (CATALOG, namespace, table, location),
    )


def swap_pointer(executor: Executor, namespace: str, table: str, old: str, new: str) -> bool:
    """Moves the table from `old` to `new`. False if the pointer is not at `old` (any more): rebase and retry."""
    cursor = executor.execute(
        "UPDATE modak.iceberg_tables SET metadata_location = %s, previous_metadata_location = metadata_location"
        f" WHERE {_ROW} AND metadata_location = %s AND {_IS_TABLE}",
        (new, CATALOG, namespace, table, old),
    )
    return cursor.rowcount == 1


def delete_pointer(executor: Executor, namespace: str, table: str) -> bool:
    """Takes the table out of the catalog; its files stay. False if it was not there."""
    cursor = executor.execute(
        f"DELETE FROM modak.iceberg_tables WHERE {_ROW} AND {_IS_TABLE}",
        (CATALOG, namespace, table),
    )
    return cursor.rowcount == 1


def ensure_namespace(executor: Executor, namespace: str) -> None:
    """Makes the namespace known to engines even while it has no table; the property is the one JdbcCatalog writes."""
    executor.execute(
        "INSERT INTO modak.iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)"
        " VALUES (%s, %s, 'exists', 'true') ON CONFLICT DO NOTHING",
        (CATALOG, namespace),
    )
