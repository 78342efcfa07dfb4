"""A catalog of tables of their own as a warehouse: whatever names their newest metadata, a path, a file or a server."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from mirror_pump.errors import UsageError
from mirror_pump.rest_catalog.catalog_requests import sent_document
from mirror_pump.rest_catalog.catalog_source import (
    LEVELS,
    AttachedWarehouse,
    CatalogView,
    FoundTable,
    PreparedTable,
    SentChange,
    TableWriter,
)
from mirror_pump.rest_catalog.protocol import (
    bad_request,
    forbidden,
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    table_exists,
)
from mirror_pump.rest_catalog.table_commits import CreateTableRequest, TableCommits, TableUpdates, UpdateTableRequest
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    NamespaceNotEmpty,
    StoredCatalog,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.table.table import Table


class LakeCatalogSource:
    """A lake catalog as a CatalogSource: each load gives the newest state of its table."""

    def __init__(self, warehouse: str, catalog: StoredCatalog, *, read_write: bool = False) -> None:
        """`warehouse`: the name by which clients attach it."""
        self.warehouses = (warehouse,)
        self._warehouse = warehouse
        self._catalog = catalog
        self._read_write = read_write
        self._view = LakeCatalogView(warehouse, catalog, read_write=read_write)

    def attach(self, warehouse: str) -> AttachedWarehouse | None:
        if warehouse != self._warehouse:
            return None
        return AttachedWarehouse(
            self._warehouse, {}, writable=self._read_write, transactions=self._catalog.has_transactions
        )

    def view(self, prefix: str) -> CatalogView | None:
        return self._view if prefix == self._warehouse else None


class LakeCatalogView:
    """The tables of a lake catalog; also the TableWriter, if they may be changed."""

    def __init__(self, warehouse: str, catalog: StoredCatalog, *, read_write: bool) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._read_write = read_write
        self._commits = TableCommits(catalog)

    def namespaces(self) -> Sequence[str]:
        names = {namespace.replace(".", LEVELS) for namespace in self._catalog.namespaces()}
        for namespace in list(names):
            levels = namespace.split(LEVELS)
            names |= {LEVELS.join(levels[:count]) for count in range(1, len(levels))}
        return sorted(names)

    def tables(self, namespace: str) -> Sequence[str]:
        if "." in namespace:
            return []
        tables = self._catalog.tables(namespace.replace(LEVELS, "."))
        return [table.name for table in tables if _identifier(namespace, table.name) is not None]

    def find(self, namespace: str, name: str) -> FoundTable:
        identifier = _identifier(namespace, name)
        pointer = None if identifier is None else self._catalog.load(identifier)
        if pointer is None:
            raise no_such_table(namespace, name)
        return self._found_table(pointer)

    def writer(self) -> TableWriter:
        if not self._read_write:
            raise forbidden(
                f"warehouse {self._warehouse} is served read-only: serve it with --read-write to write here"
            )
        return self

    def create_namespace(self, namespace: str) -> None:
        _required(namespace, "t")
        above, _, name = namespace.rpartition(LEVELS)
        if above and name in self.tables(above):
            # Both would have one directory.
            raise table_exists(above, name)
        # One above another is there without having been created.
        if namespace in self.namespaces() or not self._catalog.create_namespace(namespace.replace(LEVELS, ".")):
            raise namespace_exists(namespace)

    def drop_namespace(self, namespace: str) -> None:
        if namespace not in self.namespaces() or "." in namespace:
            raise no_such_namespace(namespace)
        try:
            dropped = self._catalog.drop_namespace(namespace.replace(LEVELS, "."))
        except NamespaceNotEmpty as error:
            raise namespace_not_empty(f"{error}; {error.remedy}") from None
        if not dropped:
            raise no_such_namespace(namespace)

    def create(self, namespace: str, body: JsonValue) -> FoundTable | PreparedTable:
        request = sent_document(CreateTableRequest, body)
        table = _required(namespace, request.name)
        if namespace not in self.namespaces():
            raise no_such_namespace(namespace)
        if self._catalog.load(table) is not None:
            raise table_exists(namespace, request.name)
        if (inner := f"{namespace}{LEVELS}{request.name}") in self.namespaces():
            # Both would have one directory.
            raise namespace_exists(inner)
        metadata = self._commits.prepared(table, request)
        if request.stage_create:
            return PreparedTable(metadata.parsed(), metadata.location, self._catalog.storage)
        try:
            return self._found_table(self._commits.create(table, metadata))
        except TableMoved:
            raise table_exists(namespace, request.name) from None

    def commit(self, changes: Sequence[SentChange]) -> Sequence[FoundTable]:
        parsed = [
            TableUpdates(_required(change.namespace, change.name), sent_document(UpdateTableRequest, change.body))
            for change in changes
        ]
        if len({change.table for change in parsed}) < len(parsed):
            raise bad_request("a transaction changes each table once")
        return [self._found_table(pointer) for pointer in self._commits.commit(parsed)]

    def drop(self, namespace: str, name: str, *, purge: bool) -> None:
        self.find(namespace, name)
        Table.drop(self._catalog, _required(namespace, name), purge=purge)

    def _found_table(self, pointer: MetadataPointer) -> FoundTable:
        return FoundTable(pointer.metadata_location, {}, self._catalog.storage)


def _identifier(namespace: str, name: str) -> TableIdentifier | None:
    """None for what can be no table's name, in any catalog."""
    try:
        identifier = TableIdentifier.parse(f"{namespace.replace(LEVELS, '.')}.{name}")
    except UsageError:
        return None
    return None if "." in namespace or "." in name else identifier


def _required(namespace: str, name: str) -> TableIdentifier:
    identifier = _identifier(namespace, name)
    if identifier is None:
        raise bad_request(
            f"{namespace.replace(LEVELS, '.')[:100]}.{name[:100]} is not the name of a table: no part may be empty,"
            " begin with _, or have a dot or a slash"
        )
    return identifier
