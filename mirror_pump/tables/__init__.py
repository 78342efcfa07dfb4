"""Iceberg tables without a server: catalogs, commits with retries, read plans and scans, for any program.

What is public here is imported when it is first used: a task that reads one module of a room need not import pyiceberg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirror_pump.errors import ForeignTable, LakeError, OutcomeUnknown
    from mirror_pump.lake.document.snapshot import Snapshot
    from mirror_pump.lake.manifests.manifest_list import Manifest
    from mirror_pump.lake.storage import StorageOptions
    from mirror_pump.runtime.backoff import RetryPolicy
    from mirror_pump.tables.catalogs.lake_catalog import LakeCatalog, TableIdentifier, TableMoved
    from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
    from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
    from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
    from mirror_pump.tables.catalogs.transaction_log import path_catalog
    from mirror_pump.tables.read_plan.planned_files import PlannedFile, ReadPlan
    from mirror_pump.tables.read_plan.scan import Scan
    from mirror_pump.tables.table.orphan_files import find_orphans, remove_orphans
    from mirror_pump.tables.table.snapshot_contents import DataFile, ManifestList
    from mirror_pump.tables.table.table import Table
    from mirror_pump.tables.table.table_errors import (
        ConflictingCommit,
        FileRefused,
        SchemaMismatch,
        TableExists,
        TableMissing,
    )
    from mirror_pump.tables.table.transaction import transaction

__all__ = [
    "ConflictingCommit",
    "DataFile",
    "FileRefused",
    "ForeignTable",
    "LakeCatalog",
    "LakeError",
    "Manifest",
    "ManifestList",
    "MemoryCatalog",
    "OutcomeUnknown",
    "PlannedFile",
    "PostgresCatalog",
    "ReadPlan",
    "RetryPolicy",
    "Scan",
    "SchemaMismatch",
    "Snapshot",
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
    "ConflictingCommit": "mirror_pump.tables.table.table_errors",
    "DataFile": "mirror_pump.tables.table.snapshot_contents",
    "FileRefused": "mirror_pump.tables.table.table_errors",
    "ForeignTable": "mirror_pump.errors",
    "LakeCatalog": "mirror_pump.tables.catalogs.lake_catalog",
    "LakeError": "mirror_pump.errors",
    "Manifest": "mirror_pump.lake.manifests.manifest_list",
    "ManifestList": "mirror_pump.tables.table.snapshot_contents",
    "MemoryCatalog": "mirror_pump.tables.catalogs.memory_catalog",
    "OutcomeUnknown": "mirror_pump.errors",
    "PlannedFile": "mirror_pump.tables.read_plan.planned_files",
    "PostgresCatalog": "mirror_pump.tables.catalogs.postgres_catalog",
    "ReadPlan": "mirror_pump.tables.read_plan.planned_files",
    "RetryPolicy": "mirror_pump.runtime.backoff",
    "Scan": "mirror_pump.tables.read_plan.scan",
    "SchemaMismatch": "mirror_pump.tables.table.table_errors",
    "Snapshot": "mirror_pump.lake.document.snapshot",
    "SqliteCatalog": "mirror_pump.tables.catalogs.sqlite_catalog",
    "StorageOptions": "mirror_pump.lake.storage",
    "Table": "mirror_pump.tables.table.table",
    "TableExists": "mirror_pump.tables.table.table_errors",
    "TableIdentifier": "mirror_pump.tables.catalogs.lake_catalog",
    "TableMissing": "mirror_pump.tables.table.table_errors",
    "TableMoved": "mirror_pump.tables.catalogs.lake_catalog",
    "find_orphans": "mirror_pump.tables.table.orphan_files",
    "path_catalog": "mirror_pump.tables.catalogs.transaction_log",
    "remove_orphans": "mirror_pump.tables.table.orphan_files",
    "transaction": "mirror_pump.tables.table.transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
