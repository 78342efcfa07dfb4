"""The lake: Iceberg's files, tables and commits. Knows neither PostgreSQL's stream nor Spark.

What is public here is imported when it is first used: a task that reads one module of a room need not import pyiceberg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirror_pump.backoff import RetryPolicy
    from mirror_pump.errors import ForeignTable, LakeError, OutcomeUnknown
    from mirror_pump.lake.catalogs.lake_catalog import LakeCatalog, TableIdentifier, TableMoved
    from mirror_pump.lake.catalogs.memory_catalog import MemoryCatalog
    from mirror_pump.lake.catalogs.postgres_catalog import PostgresCatalog
    from mirror_pump.lake.catalogs.sqlite_catalog import SqliteCatalog
    from mirror_pump.lake.catalogs.transaction_log import path_catalog
    from mirror_pump.lake.read_plan.planned_files import PlannedFile, ReadPlan
    from mirror_pump.lake.read_plan.scan import Scan
    from mirror_pump.lake.storage import StorageOptions
    from mirror_pump.lake.table.orphan_files import find_orphans, remove_orphans
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
    "ForeignTable",
    "LakeCatalog",
    "LakeError",
    "MemoryCatalog",
    "OutcomeUnknown",
    "PlannedFile",
    "PostgresCatalog",
    "ReadPlan",
    "RetryPolicy",
    "Scan",
    "SchemaMismatch",
    "SqliteCatalog",
    "StorageOptions",
    "Table",
    "TableExists",
    "TableIdentifier",
    "TableMissing",
    "TableMoved",
    "find_orphans",
    "path_catalog",
    "remove_orphans",
    "transaction",
]

_MODULES = {
    "ConflictingCommit": "mirror_pump.lake.table.table_errors",
    "FileRefused": "mirror_pump.lake.table.table_errors",
    "ForeignTable": "mirror_pump.errors",
    "LakeCatalog": "mirror_pump.lake.catalogs.lake_catalog",
    "LakeError": "mirror_pump.errors",
    "MemoryCatalog": "mirror_pump.lake.catalogs.memory_catalog",
    "OutcomeUnknown": "mirror_pump.errors",
    "PlannedFile": "mirror_pump.lake.read_plan.planned_files",
    "PostgresCatalog": "mirror_pump.lake.catalogs.postgres_catalog",
    "ReadPlan": "mirror_pump.lake.read_plan.planned_files",
    "RetryPolicy": "mirror_pump.backoff",
    "Scan": "mirror_pump.lake.read_plan.scan",
    "SchemaMismatch": "mirror_pump.lake.table.table_errors",
    "SqliteCatalog": "mirror_pump.lake.catalogs.sqlite_catalog",
    "StorageOptions": "mirror_pump.lake.storage",
    "Table": "mirror_pump.lake.table.table",
    "TableExists": "mirror_pump.lake.table.table_errors",
    "TableIdentifier": "mirror_pump.lake.catalogs.lake_catalog",
    "TableMissing": "mirror_pump.lake.table.table_errors",
    "TableMoved": "mirror_pump.lake.catalogs.lake_catalog",
    "find_orphans": "mirror_pump.lake.table.orphan_files",
    "path_catalog": "mirror_pump.lake.catalogs.transaction_log",
    "remove_orphans": "mirror_pump.lake.table.orphan_files",
    "transaction": "mirror_pump.lake.table.transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
