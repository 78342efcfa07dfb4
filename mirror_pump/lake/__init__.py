"""The lake: Iceberg's files, tables and commits. Knows neither PostgreSQL's stream nor Spark.

What is public here is imported when it is first used: a task that reads one module of a room need not import pyiceberg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirror_pump.backoff import RetryPolicy
    from mirror_pump.lake.catalogs.lake_catalog import LakeCatalog, TableIdentifier, TableMoved
    from mirror_pump.lake.catalogs.memory_catalog import MemoryCatalog
    from mirror_pump.lake.catalogs.postgres_catalog import PostgresCatalog
    from mirror_pump.lake.catalogs.sqlite_catalog import SqliteCatalog
    from mirror_pump.lake.catalogs.transaction_log import path_catalog
    from mirror_pump.lake.storage import StorageOptions
    from mirror_pump.lake.table.table import Table
    from mirror_pump.lake.table.table_errors import (
        ConflictingCommit,
        FileRefused,
        SchemaMismatch,
        TableExists,
        TableMissing,
    )
    from mirror_pump.lake.table.transaction import transaction

__all__ = [
    "ConflictingCommit",
    "FileRefused",
    "LakeCatalog",
    "MemoryCatalog",
    "PostgresCatalog",
    "RetryPolicy",
    "SchemaMismatch",
    "SqliteCatalog",
    "StorageOptions",
    "Table",
    "TableExists",
    "TableIdentifier",
    "TableMissing",
    "TableMoved",
    "path_catalog",
    "transaction",
]

_MODULES = {
    "ConflictingCommit": "mirror_pump.lake.table.table_errors",
    "FileRefused": "mirror_pump.lake.table.table_errors",
    "LakeCatalog": "mirror_pump.lake.catalogs.lake_catalog",
    "MemoryCatalog": "mirror_pump.lake.catalogs.memory_catalog",
    "PostgresCatalog": "mirror_pump.lake.catalogs.postgres_catalog",
    "RetryPolicy": "mirror_pump.backoff",
    "SchemaMismatch": "mirror_pump.lake.table.table_errors",
    "SqliteCatalog": "mirror_pump.lake.catalogs.sqlite_catalog",
    "StorageOptions": "mirror_pump.lake.storage",
    "Table": "mirror_pump.lake.table.table",
    "TableExists": "mirror_pump.lake.table.table_errors",
    "TableIdentifier": "mirror_pump.lake.catalogs.lake_catalog",
    "TableMissing": "mirror_pump.lake.table.table_errors",
    "TableMoved": "mirror_pump.lake.catalogs.lake_catalog",
    "path_catalog": "mirror_pump.lake.catalogs.transaction_log",
    "transaction": "mirror_pump.lake.table.transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
