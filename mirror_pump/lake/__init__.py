"""The lake: Iceberg's files, tables and commits. Knows neither PostgreSQL's stream nor Spark.

What is public here is imported when it is first used: a task that reads one module of a room need not import pyiceberg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "ConflictingCommit": "table.table_errors",
    "FileRefused": "table.table_errors",
    "LakeCatalog": "catalogs.lake_catalog",
    "MemoryCatalog": "catalogs.memory_catalog",
    "PostgresCatalog": "catalogs.postgres_catalog",
    "SchemaMismatch": "table.table_errors",
    "SqliteCatalog": "catalogs.sqlite_catalog",
    "StorageOptions": "storage",
    "Table": "table.table",
    "TableExists": "table.table_errors",
    "TableIdentifier": "catalogs.lake_catalog",
    "TableMissing": "table.table_errors",
    "TableMoved": "catalogs.lake_catalog",
    "path_catalog": "catalogs.transaction_log",
    "transaction": "table.transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
