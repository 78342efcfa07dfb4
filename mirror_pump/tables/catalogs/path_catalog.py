"""A catalog without a server: a table's newest metadata is the one with the highest number, in the table's directory.

The layout is that of Iceberg's HadoopCatalog: `<root>/<namespace>/<table>/metadata/v<N>.metadata.json`. A commit
creates number N+1 if it is absent, so of several writers that build on N exactly one succeeds. For that no number is
ever free again: a dropped table leaves a small file under its last number, after which a table of the same name goes
on. `version-hint.text` spares readers the search, and is trusted for nothing else.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import orjson

from mirror_pump.errors import FileMissing, LakeError, OutcomeUnknown
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import (
    StorageOptions,
    delete,
    exists,
    join,
    list_directories,
    list_files,
    read_bytes,
    size_of,
    write_bytes,
)
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
)
from mirror_pump.tables.put_if_absent import ProbedStore, put_if_absent

LOG = "_transactions"
"""Directory of the log of a warehouse with transactions (mirror_pump.tables.catalogs.transaction_log)."""
FIRST_ENTRY = f"{0:020d}.json"

_NAMESPACE = "_namespace"
"""A file in the directory of a namespace that was created, since object stores have no directories: empty, or with a
text once it was dropped. Directories without it are namespaces too, as in Iceberg's HadoopCatalog."""
_NUMBERED = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")
_DROPPED = "mirror-pump.dropped"
_SMALL = 400
"""Bytes: shorter than any table's metadata, longer than the file of a dropped table."""
_COMPRESSION = "write.metadata.compression-codec"


class PathCatalog:
    """A catalog in a directory or a bucket, for any number of processes. Threads may share it."""

    has_transactions = False

    def __init__(self, root: str, storage: StorageOptions | None = None) -> None:
        """`root`: URI of the directory of all tables. Raises LakeError for one that has a transaction log."""
        self.storage = storage or StorageOptions()
        self._root = root.rstrip("/")
        self._noted_versions: dict[TableIdentifier, int] = {}
        """A version that is there: where to begin to look."""
        self._lock = threading.Lock()
        self._store = ProbedStore(self._root, self.storage)
        if exists(join(self._root, LOG, FIRST_ENTRY), self.storage):
            raise LakeError(
                f"the tables in {self._root} are committed through its transaction log",
                "open it by mirror_pump.tables.path_catalog()",
            )

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        pointer = self._newest(table)
        return None if pointer is None or self._is_dropped(pointer) else pointer

    def namespaces(self) -> Sequence[str]:
        return sorted(
            namespace
            for namespace, tables in self._directories()
            if not size_of(self._marker(namespace), self.storage) or any(self.load(table) for table in tables)
        )

    def create_namespace(self, namespace: str) -> bool:
        require_namespace(namespace)
        there = namespace in self.namespaces()
        if not there:
            write_bytes(self._marker(namespace), b"", self.storage)
        return not there

    def drop_namespace(self, namespace: str) -> bool:
        require_namespace(namespace)
        namespaces = self.namespaces()
        require_empty(namespace, self.tables(namespace), namespaces)
        there = namespace in namespaces
        if there:
            # The directory stays: dropped tables have left their last numbers in it.
            write_bytes(self._marker(namespace), b"dropped", self.storage)
        return there

    def close(self) -> None:
        """There is no connection."""

    def _marker(self, namespace: str) -> str:
        return join(self._root, *namespace.split("."), _NAMESPACE)

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        identifiers = dict(self._directories()).get(namespace, ())
        return [table for table in identifiers if self.load(table) is not None]

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        tables = [table for _, identifiers in self._directories() for table in identifiers]
        return {table: pointer for table in tables if (pointer := self.load(table)) is not None}

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        if len(changes) > 1:
            names = ", ".join(str(change.table) for change in changes)
            raise LakeError(
                f"{self._root} has no transaction log, so {names} cannot be changed in one commit",
                "commit to one table at a time, or make a warehouse by path_catalog(root, transactions=True)",
            )
        return [self._commit(change) for change in changes]

    def table_location(self, table: TableIdentifier) -> str:
        return table_directory(self._root, table)

    def _commit(self, change: PointerChange) -> MetadataPointer | None:
        self._store.require()
        version = self._base_version(change) + 1
        location = version_location(self._root, change.table, version)
        content = dropped_content() if change.metadata is None else plain_content(new_metadata(change))
        if not put_if_absent(location, content, self.storage):
            raise TableMoved([change.table])
        try:
            counts = change.base is None or exists(change.base.metadata_location, self.storage)
            if not counts:
                # Old metadata is being removed, so this number may have been in use: no writer may build on it.
                delete(location, self.storage)
        except LakeError as error:
            raise OutcomeUnknown(
                f"{location} was created, but the storage fails before it is known whether the commit counts: {error}",
                error.remedy or "load the table again, and see whether the commit is there",
            ) from error
        if not counts:
            raise TableMoved([change.table])
        self._note(change.table, version)
        write_hint(self._root, change.table, version, self.storage)
        return None if change.metadata is None else MetadataPointer(location, version)

    def _base_version(self, change: PointerChange) -> int:
        """The number that the commit follows. Raises TableMoved if there is a table that was not to exist."""
        if change.base is not None:
            if change.base.version is None or change.base.metadata_location.endswith(".gz.metadata.json"):
                raise LakeError(
                    f"{change.base.metadata_location} is not metadata that this catalog can continue",
                    f"commit once with the engine that wrote it, with the table property {_COMPRESSION} set to none",
                )
            return change.base.version
        newest = self._newest(change.table)
        if newest is None or change.metadata is None:
            return 0 if newest is None else newest.version or 0
        if not self._is_dropped(newest):
            raise TableMoved([change.table])
        assert newest.version is not None
        return newest.version

    def _newest(self, table: TableIdentifier) -> MetadataPointer | None:
        """The metadata with the highest number. A number without metadata has none after it."""
        directory = join(table_directory(self._root, table), "metadata")
        with self._lock:
            noted_version = self._noted_versions.get(table, 0)
        version = max(noted_version, read_hint(self._root, table, self.storage))
        location = self._numbered(directory, version) if version else None
        if location is None:
            # No hint, or one that names what is not there.
            version = max((number for number, _ in self._listed(directory)), default=0)
            location = self._numbered(directory, version) if version else None
        while (later := self._numbered(directory, version + 1)) is not None:
            version, location = version + 1, later
        if location is None:
            return None
        self._note(table, version)
        return MetadataPointer(location, version)

    def _numbered(self, directory: str, version: int) -> str | None:
        """Location of the metadata with a number. Spark may have compressed it, and then has another name for it."""
        for name in (f"v{version}.metadata.json", f"v{version}.gz.metadata.json"):
            if exists(join(directory, name), self.storage):
                return join(directory, name)
        return None

    def _listed(self, directory: str) -> Iterator[tuple[int, str]]:
        for file in list_files(directory, self.storage):
            match = _NUMBERED.fullmatch(file.location.removeprefix(f"{directory}/"))
            if match is not None:
                yield int(match[1]), file.location

    def _note(self, table: TableIdentifier, version: int) -> None:
        with self._lock:
            self._noted_versions[table] = max(self._noted_versions.get(table, 0), version)

    def _is_dropped(self, pointer: MetadataPointer) -> bool:
        size = size_of(pointer.metadata_location, self.storage)
        return size is not None and size <= _SMALL and is_dropped(read_bytes(pointer.metadata_location, self.storage))

    def _directories(self) -> Iterator[tuple[str, list[TableIdentifier]]]:
        """All namespaces, with what may be tables in them."""
        pending = [""]
        while pending:
            namespace = pending.pop()
            directory = join(self._root, *namespace.split(".")) if namespace else self._root
            tables = []
            for name in list_directories(directory, self.storage):
                if name.startswith(("_", ".")):
                    continue
                if namespace and "metadata" in list_directories(join(directory, name), self.storage):
                    tables.append(TableIdentifier(namespace, name))
                else:
                    pending.append(f"{namespace}.{name}" if namespace else name)
            if namespace:
                yield namespace, tables


def table_directory(root: str, table: TableIdentifier) -> str:
    """Root URI of a table's files. Raises UsageError for a name that is none of a directory."""
    TableIdentifier.parse(str(table))
    return join(root, *table.namespace.split("."), table.name)


def version_location(root: str, table: TableIdentifier, version: int) -> str:
    """Location of a table's metadata with a number."""
    return join(table_directory(root, table), "metadata", f"v{version}.metadata.json")


def dropped_content() -> bytes:
    """What is under the last number of a dropped table: no table to any engine, and each time another content."""
    return orjson.dumps({_DROPPED: uuid.uuid4().hex})


def is_dropped(content: bytes) -> bool:
    """Whether a file under a table's number says that the table was dropped."""
    try:
        return set(orjson.loads(content)) == {_DROPPED}
    except (ValueError, TypeError):
        return False


def new_metadata(change: PointerChange) -> TableMetadata:
    """A table's next state. Raises LakeError for a metadata file that is there: a table's name is its directory."""
    if not isinstance(change.metadata, TableMetadata):
        raise LakeError(
            f"{change.table} cannot be the name of files that are there: a table's name is its directory here",
            "use a catalog in SQLite or PostgreSQL",
        )
    return change.metadata


def plain_content(metadata: TableMetadata) -> bytes:
    """The content of a metadata file. Raises LakeError for a table whose other writers compress theirs: these have
    other names, under which two writers would not notice each other."""
    if metadata.properties.get(_COMPRESSION, "none").lower() not in ("none", ""):
        raise LakeError(
            f"the table in {metadata.location} has compressed metadata files",
            f"set its property {_COMPRESSION} to none",
        )
    return metadata.to_json()


def read_hint(root: str, table: TableIdentifier, storage: StorageOptions) -> int:
    """The number in the table's hint; 0 without a readable one."""
    try:
        return int(read_bytes(_hint(root, table), storage))
    except (FileMissing, ValueError):
        return 0


def write_hint(root: str, table: TableIdentifier, version: int, storage: StorageOptions) -> None:
    """Leaves the number for readers. Without it they find the table all the same."""
    with suppress(LakeError):
        write_bytes(_hint(root, table), b"%d" % version, replace(storage, fsync=False))


def _hint(root: str, table: TableIdentifier) -> str:
    return join(table_directory(root, table), "metadata", "version-hint.text")
