"""A catalog of tables of their own as a warehouse: whatever names their newest metadata, a path, a file or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from mirror_pump.errors import FileDamaged, FileMissing, UsageError
from mirror_pump.lake.document.metadata_files import metadata_directory, read_any_version, spelled
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.storage import exists
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
    NamespaceChange,
    ProtocolError,
    RegisterTableRequest,
    RenameTableRequest,
    TableReference,
    bad_request,
    forbidden,
    namespace_exists,
    namespace_not_empty,
    no_such_namespace,
    no_such_table,
    table_exists,
    unsupported,
)
from mirror_pump.rest_catalog.table_commits import CreateTableRequest, TableCommits, TableUpdates, UpdateTableRequest
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    NamespaceNotEmpty,
    PointerChange,
    RowCatalog,
    StoredCatalog,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.catalogs.table_directories import LOCATION, METADATA_FILE, require_between, within_warehouse
from mirror_pump.tables.table.orphan_files import HINT, NUMBERED, is_pumps
from mirror_pump.tables.table.table import LAKE_RETRIES, Table

_EXISTS = "exists"
"""The property by which Iceberg's JDBC catalog notes a namespace. It is not shown."""
_LONGEST_NAME, _LONGEST_VALUE = 255, 1000
"""Characters of names and properties, as that catalog's columns have them."""


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
            self._warehouse,
            {},
            writable=self._read_write,
            transactions=self._catalog.has_transactions,
            rows=isinstance(self._catalog, RowCatalog),
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
        self._rows = catalog if isinstance(catalog, RowCatalog) else None

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

    def properties(self, namespace: str) -> Mapping[str, str] | None:
        if self._rows is None or "." in namespace:
            return None
        return self._rows.namespace_properties(namespace.replace(LEVELS, "."))

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

    def create_namespace(self, namespace: str, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        _required(namespace, "t")
        above, _, name = namespace.rpartition(LEVELS)
        if above and name in self.tables(above):
            # Both would have one directory.
            raise table_exists(above, name)
        # One above another is there without having been created.
        if namespace in self.namespaces():
            raise namespace_exists(namespace)
        dotted = namespace.replace(LEVELS, ".")
        if self._rows is None:
            # Spark sends an owner with each namespace, so they are not refused.
            created, stored = self._catalog.create_namespace(dotted), None
        else:
            stored = self._stored_properties(self._rows, properties)
            created = self._rows.create_namespace(dotted, stored)
        if not created:
            raise namespace_exists(namespace)
        return stored

    def change_namespace(self, namespace: str, change: NamespaceChange) -> Sequence[str]:
        catalog = self._required_rows("keeps no properties of namespaces")
        if namespace not in self.namespaces() or "." in namespace:
            raise no_such_namespace(namespace)
        both = change.updates.keys() & set(change.removals)
        if both:
            message = f"properties cannot be set and removed at once: {', '.join(sorted(both))}"
            raise ProtocolError(422, "UnprocessableEntityException", message)
        updates, dotted = self._stored_properties(catalog, change.updates), namespace.replace(LEVELS, ".")
        removals = [name for name in change.removals if name in catalog.namespace_properties(dotted)]
        catalog.change_properties(dotted, removals, updates)
        return removals

    def _stored_properties(self, catalog: RowCatalog, properties: Mapping[str, str]) -> Mapping[str, str]:
        """As the catalog keeps them. Raises ProtocolError, DirectoryRefused and LakeError."""
        for name, value in properties.items():
            if name == _EXISTS or not name or len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE:
                raise bad_request(
                    f"property {name[:100]!r} of a namespace: its name has 1 to {_LONGEST_NAME} characters and is not"
                    f" {_EXISTS!r}, its value has {_LONGEST_VALUE} at most"
                )
        if LOCATION not in properties:
            return properties
        location = within_warehouse(properties[LOCATION], catalog.warehouse)
        require_between(f"{location.rstrip('/')}/table", catalog.warehouse, catalog.storage)
        return {**properties, LOCATION: location}

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
        table = self._free_name(namespace, request.name)
        metadata = self._commits.prepared(table, request)
        if request.stage_create:
            return PreparedTable(metadata.parsed(), metadata.location, self._catalog.storage)
        try:
            return self._found_table(self._commits.create(table, metadata))
        except TableMoved:
            raise table_exists(namespace, request.name) from None

    def _free_name(self, namespace: str, name: str) -> TableIdentifier:
        """A name for a table that is to come. Raises ProtocolError."""
        table = _required(namespace, name)
        if namespace not in self.namespaces():
            raise no_such_namespace(namespace)
        if self._catalog.load(table) is not None:
            raise table_exists(namespace, name)
        if (inner := f"{namespace}{LEVELS}{name}") in self.namespaces():
            # Both would have one directory.
            raise namespace_exists(inner)
        return table

    def rename(self, request: RenameTableRequest) -> None:
        self._required_rows("has each table in the directory of its name, which stays")
        source, destination = _parts_of(request.source), _parts_of(request.destination)

        def rename() -> None:
            before = _identifier(*source)
            pointer = None if before is None else self._catalog.load(before)
            if before is None or pointer is None:
                raise no_such_table(*source)
            after = self._free_name(*destination)
            self._catalog.commit([PointerChange(before, pointer, None), PointerChange(after, None, pointer)])

        LAKE_RETRIES.call(rename, lambda error: isinstance(error, TableMoved))

    def register(self, namespace: str, body: JsonValue) -> FoundTable:
        catalog = self._required_rows("finds tables by the directories of their names")
        request = sent_document(RegisterTableRequest, body)
        table = self._free_name(namespace, request.name)
        if request.overwrite:
            raise bad_request("a table is not replaced by another one's metadata: drop it first, and then register")
        try:
            (pointer,) = catalog.commit(
                [PointerChange(table, None, _registered_file(request.metadata_location, catalog))]
            )
        except TableMoved:
            raise table_exists(namespace, request.name) from None
        assert pointer is not None
        if not exists(request.metadata_location, catalog.storage):
            # A purge of the table that had the file before has removed it meanwhile.
            catalog.commit([PointerChange(table, pointer, None)])
            raise bad_request(f"{request.metadata_location} was removed while it was registered")
        return self._found_table(pointer)

    def _required_rows(self, reason: str) -> RowCatalog:
        if self._rows is None:
            raise unsupported(f"warehouse {self._warehouse} {reason}; a catalog in SQLite or PostgreSQL can do this")
        return self._rows

    def commit(self, changes: Sequence[SentChange]) -> Sequence[FoundTable]:
        parsed = [
            TableUpdates(
                _required(change.namespace, change.name), sent_document(UpdateTableRequest, change.body), change.by_name
            )
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


def _registered_file(location: str, catalog: RowCatalog) -> MetadataPointer:
    """The metadata file for a commit, which compares its directory with those of all tables. Raises ProtocolError,
    DirectoryRefused, and LakeError."""
    directory, _, name = location.rpartition("/")
    root = directory.removesuffix("/metadata")
    if not name.endswith(METADATA_FILE) or root == directory:
        raise bad_request(f"{location[:500]} is no metadata file in the directory `metadata` of a table")
    # Before it is read: no client decides which other files this process reads.
    require_between(root, catalog.warehouse, catalog.storage)
    if NUMBERED.fullmatch(name) and exists(f"{directory}/{HINT}", catalog.storage):
        raise bad_request(f"{location} is of a table that is found by its directory, and cannot have a name here, too")
    try:
        metadata = read_any_version(location, catalog.storage)
    except (FileMissing, FileDamaged) as error:
        raise bad_request(str(error)) from error
    if spelled(metadata.location).rstrip("/") != spelled(root) or (
        spelled(metadata_directory(metadata)).rstrip("/") != spelled(directory)
    ):
        raise bad_request(f"{location} is the metadata of a table at {metadata.location}, and is not in its directory")
    if metadata.format_version > VECTOR_VERSION:
        raise bad_request(f"{location} has Iceberg format version {metadata.format_version}, which is only read here")
    if is_pumps(metadata):
        raise forbidden(f"{location} is the metadata of a mirrored table, whose files are the pump's")
    return MetadataPointer(location)


def _parts_of(table: TableReference) -> tuple[str, str]:
    return LEVELS.join(table.namespace), table.name


def _identifier(namespace: str, name: str) -> TableIdentifier | None:
    """None for what can be no table's name, in any catalog."""
    try:
        identifier = TableIdentifier.parse(f"{namespace.replace(LEVELS, '.')}.{name}")
    except UsageError:
        return None
    return None if "." in namespace or "." in name else identifier


def _required(namespace: str, name: str) -> TableIdentifier:
    identifier = _identifier(namespace, name)
    parts = (*namespace.split(LEVELS), name)
    if (
        identifier is None
        or len(namespace) > _LONGEST_NAME
        or any(len(part.encode()) > _LONGEST_NAME for part in parts)
    ):
        raise bad_request(
            f"{namespace.replace(LEVELS, '.')[:100]}.{name[:100]} is not the name of a table: no part may be empty,"
            f" begin with _, have a dot or a slash, or be longer than {_LONGEST_NAME} bytes"
        )
    return identifier
