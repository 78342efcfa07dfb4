"""A catalog in the memory of one process: for tests, and for tables that need not outlive it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import (
    DirectoryClaim,
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
    staged_metadata,
)
from mirror_pump.tables.catalogs.table_directories import TableRow, claims_of, new_directory, require_apart


class MemoryCatalog:
    """A dict and a lock. The tables' files are in a warehouse like those of any other catalog."""

    has_transactions = True

    def __init__(self, warehouse: str, storage: StorageOptions | None = None) -> None:
        """`warehouse`: URI of a directory, which is made if necessary."""
        self.storage = storage or StorageOptions()
        self.warehouse = warehouse
        self._lock = threading.Lock()
        self._pointers: dict[TableIdentifier, MetadataPointer] = {}
        self._created: dict[str, dict[str, str]] = {}
        """Namespaces that were created, with their properties."""

    def close(self) -> None:
        """There is no connection. What it knows stays."""

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        with self._lock:
            return self._pointers.get(table)

    def namespaces(self) -> Sequence[str]:
        with self._lock:
            return self._namespaces()

    def _namespaces(self) -> Sequence[str]:
        return sorted(self._created.keys() | {table.namespace for table in self._pointers})

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> bool:
        require_namespace(namespace)
        with self._lock:
            there = namespace in self._namespaces()
            self._created.setdefault(namespace, {} if there else dict(properties or {}))
        return not there

    def namespace_properties(self, namespace: str) -> Mapping[str, str]:
        with self._lock:
            return dict(self._created.get(namespace, {}))

    def change_properties(self, namespace: str, removals: Collection[str], updates: Mapping[str, str]) -> None:
        with self._lock:
            properties = self._created.get(namespace, {}).items()
            self._created[namespace] = {key: value for key, value in properties if key not in removals} | dict(updates)

    def drop_namespace(self, namespace: str) -> bool:
        with self._lock:
            require_empty(namespace, self._pointers, self._namespaces())
            there = namespace in self._created
            self._created.pop(namespace, None)
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
            after = dict(self._pointers)
            for change, pointer in zip(changes, pointers, strict=True):
                if pointer is None:
                    after.pop(change.table, None)
                else:
                    after[change.table] = pointer
            require_apart("", claims_of(changes), _rows(after))
            self._pointers = after

    def require_apart(self, claims: Sequence[DirectoryClaim]) -> None:
        require_apart("", claims, _rows(self.pointers()))

    def table_location(self, table: TableIdentifier) -> str:
        return new_directory(self.warehouse, table, self.namespace_properties(table.namespace))


def _rows(pointers: Mapping[TableIdentifier, MetadataPointer]) -> Sequence[TableRow]:
    return [TableRow("", name.namespace, name.name, at.metadata_location) for name, at in pointers.items()]
