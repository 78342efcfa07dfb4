"""The lake: Iceberg's files, tables and commits. Knows neither PostgreSQL's stream nor Spark.

What is public here is imported when it is first used: a task that reads one module of a room need not import pyiceberg.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirror_pump.lake.catalogs.lake_catalog import LakeCatalog, TableIdentifier
    from mirror_pump.lake.catalogs.memory_catalog import MemoryCatalog
    from mirror_pump.lake.storage import StorageOptions

__all__ = ["LakeCatalog", "MemoryCatalog", "StorageOptions", "TableIdentifier"]

_MODULES = {
    "LakeCatalog": "catalogs.lake_catalog",
    "MemoryCatalog": "catalogs.memory_catalog",
    "StorageOptions": "storage",
    "TableIdentifier": "catalogs.lake_catalog",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
