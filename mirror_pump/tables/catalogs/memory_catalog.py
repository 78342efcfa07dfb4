"""A catalog in the memory of one process: for tests, and for tables that need not outlive it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from mirror_pump.lake.storage import StorageOptions, join
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
    staged_metadata,
)


class MemoryCatalog:
    """A dict and a lock. The tables' files are in a warehouse like those of any other catalog."""

    has_transactions = True

    def __init__(self, warehouse: str, storage: StorageOptions | None = None) -> None:
        """`warehouse`: URI of a directory, which is made if necessary."""
        self.storage = storage or StorageOptions()
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._pointers: dict[TableIdentifier, MetadataPointer] = {}
        self._created: set[str] = set()
        """Namespaces that were created."""

    def close(self) -> None:
        """There is no connection. What it knows stays."""

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        with self._lock:
            return self._pointers.get(table)

    def namespaces(self) -> Sequence[str]:
        with self._lock:
            return self._namespaces()

    def _namespaces(self) -> Sequence[str]:
        return sorted(self._created | {table.namespace for table in self._pointers})

    def create_namespace(self, namespace: str) -> bool:
        require_namespace(namespace)
        with self._lock:
            there = namespace in self._namespaces()
            self._created.add(namespace)
        return not there

    def drop_namespace(self, namespace: str) -> bool:
        with self._lock:
            require_empty(namespace, self._pointers, self._namespaces())
            there = namespace in self._created
            self._created.discard(namespace)
        return there

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return sorted(table for table in self.pointers() if table.namespace == namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        with self._lock:
            return dict(self._pointers)

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        with staged_metadata(changes, self.storage) as pointers:
            self._swap(changes, pointers)
        return pointers

    def _swap(self, changes: Sequence[PointerChange], pointers: Sequence[MetadataPointer | None]) -> None:
        with self._lock:
            moved = [change.table for change in changes if self._pointers.get(change.table) != change.base]
            if moved:
                raise TableMoved(moved)
            for change, pointer in zip(changes, pointers, strict=True):
                if pointer is None:
                    self._pointers.pop(change.table, None)
                else:
                    self._pointers[change.table] = pointer

    def table_location(self, table: TableIdentifier) -> str:
        return join(self._warehouse, *table.namespace.split("."), table.name)
