"""The protocol of catalogs: which metadata file is a table's newest, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mirror_pump.errors import CommitConflict, LakeError, MirrorPumpError, OutcomeUnknown, UsageError
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, discard, write_all


@dataclass(frozen=True, order=True)
class TableIdentifier:
    """The name of a table in a catalog."""

    namespace: str
    """One level or several, separated by dots."""
    name: str

    @classmethod
    def parse(cls, text: str) -> TableIdentifier:
        """`sales.orders`. Raises UsageError for a name without a namespace, and for one that is no name of a file."""
        namespace, _, name = text.rpartition(".")
        for part in (*namespace.split("."), name):
            if not part or part.startswith("_") or "/" in part or "\0" in part:
                raise UsageError(f"{text!r} is not the name of a table", "name it as in sales.orders")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True)
class MetadataPointer:
    """What a catalog says about a table: where its newest metadata file is."""

    metadata_location: str
    """URI. Metadata files never change."""
    version: int | None = None
    """The N of `v<N>.metadata.json`, in path catalogs only."""


@dataclass(frozen=True)
class PointerChange:
    """One table's part of a commit."""

    table: TableIdentifier
    base: MetadataPointer | None
    """What the change builds on. None: the table must not exist."""
    metadata: TableMetadata | MetadataPointer | None
    """The table's next state. A pointer, in a RowCatalog only: to a metadata file that is there, for a table that gets
    this name. None: drop the table, whose files stay."""
    files: tuple[str, ...] = ()
    """URIs of what was written for this change: unless it succeeds, nothing refers to them."""
    emptied: str | None = None
    """Of a drop: URI of the directory whose files are removed after it. A RowCatalog refuses it if another table has
    its directory there."""


@dataclass(frozen=True)
class DirectoryClaim:
    """What no other table may share: a directory in which a table is to be, or whose files are to be removed."""

    table: TableIdentifier
    directory: str
    """URI."""
    remedy: str


class TableMoved(CommitConflict):
    """Tables are not as the changes of a commit expected. Nothing was changed."""

    def __init__(self, tables: Iterable[TableIdentifier]) -> None:
        self.tables = frozenset(tables)
        names = ", ".join(map(str, sorted(self.tables)))
        super().__init__(f"another writer committed to {names} meanwhile", "load the table and try again")


class PumpsTable(LakeError):
    """A mirrored table, which only the pump changes, was to be changed. Nothing was changed."""


class NamespaceNotEmpty(LakeError):
    """A namespace with something in it was to be dropped. Nothing was changed."""

    def __init__(self, namespace: str, content: str, remedy: str) -> None:
        super().__init__(f"namespace {namespace} is not empty: it has {content}", remedy)


class LakeCatalog(Protocol):
    """A catalog of Iceberg tables. Threads may share one."""

    @property
    def storage(self) -> StorageOptions:
        """How the tables' files are reached."""
        ...

    @property
    def has_transactions(self) -> bool:
        """Whether `commit` takes changes of several tables, and `pointers` is of one moment."""
        ...

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        """The table's newest metadata; None without the table. Sees each commit that returned before the call. Raises
        LakeError, and ConnectionLost if the catalog's server does not answer."""
        ...

    def namespaces(self) -> Sequence[str]:
        """All namespaces, in order."""
        ...

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        """The namespace's tables, in order; none for a namespace that does not exist."""
        ...

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        """All tables. Of one moment if `has_transactions`."""
        ...

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        """Writes the metadata files of the changes and makes them the newest: all or nothing, one linearizable step.

        Returns the new pointers in the order of the changes, None for a dropped table. Raises TableMoved if one of the
        tables is not at its base, and LakeError if the storage fails: then nothing has changed, and the metadata files
        are removed. If an answer is lost, looks whether the commit happened, and raises OutcomeUnknown only if that
        cannot be found out: then the files stay.
        """
        ...

    def table_location(self, table: TableIdentifier) -> str:
        """Root URI of the files of a new table of this name. Of a RowCatalog another one at each call."""
        ...


class StoredCatalog(LakeCatalog, Protocol):
    """A catalog that also remembers namespaces without tables. A namespace is there if it was created, or has tables,
    so creating a table in one that is dropped meanwhile needs no care."""

    def create_namespace(self, namespace: str) -> bool:
        """Durable on return. False if it was there already. Raises UsageError for what is no name, and LakeError."""
        ...

    def drop_namespace(self, namespace: str) -> bool:
        """False if it is not there. Raises NamespaceNotEmpty if it has tables, or namespaces below, and LakeError."""
        ...

    def close(self) -> None:
        """Close its connection, if it has one. Another call opens it again."""
        ...


@runtime_checkable
class RowCatalog(StoredCatalog, Protocol):
    """A catalog in which a table's name is that of a row, and of no directory. So a table can get another name, or come
    with its metadata file, and namespaces have properties. Commits refuse a new table whose directory is within that of
    another one, or around it."""

    @property
    def warehouse(self) -> str:
        """Root URI of the directories of tables."""
        ...

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> bool:
        """As any catalog's; one that was there already keeps its properties."""
        ...

    def namespace_properties(self, namespace: str) -> Mapping[str, str]:
        """None for a namespace without any, and for one that is not there."""
        ...

    def change_properties(self, namespace: str, removals: Collection[str], updates: Mapping[str, str]) -> None:
        """Removes and sets properties of a namespace, in one step."""
        ...

    def require_apart(self, claims: Sequence[DirectoryClaim]) -> None:
        """Raises DirectoryRefused if another table has its directory in a claimed one, or around it: of all catalogs
        that are kept with this one, the mirror's too."""
        ...


def require_namespace(namespace: str) -> None:
    """Raises UsageError for what cannot be the namespace of a table."""
    TableIdentifier.parse(f"{namespace}.table")


def require_empty(namespace: str, tables: Iterable[TableIdentifier], namespaces: Iterable[str]) -> None:
    """Raises NamespaceNotEmpty if one of these tables is in the namespace, or one of these namespaces below it."""
    names = sorted(str(table) for table in tables if table.namespace == namespace)
    below = sorted(other for other in namespaces if other.startswith(f"{namespace}."))
    if names:
        raise NamespaceNotEmpty(namespace, f"tables: {', '.join(names[:3])}", "drop its tables first")
    if below:
        raise NamespaceNotEmpty(namespace, f"namespaces below it: {', '.join(below[:3])}", "drop these first")


@contextmanager
def staged_metadata(
    changes: Sequence[PointerChange], storage: StorageOptions
) -> Iterator[Sequence[MetadataPointer | None]]:
    """Writes the changes' metadata files, under names of their own, for a block that moves the pointers to them.

    Yields the new pointers, in the order of the changes. If the block ends with one of our errors, nothing refers to
    the files and they are removed; after any other error, as after OutcomeUnknown, they stay.
    """
    pointers = [_next_pointer(change) for change in changes]
    files = [
        (pointer.metadata_location, change.metadata.to_json())
        for pointer, change in zip(pointers, changes, strict=True)
        if pointer is not None and isinstance(change.metadata, TableMetadata)
    ]
    write_all(files, storage)
    try:
        yield pointers
    except OutcomeUnknown:
        raise
    except MirrorPumpError:
        discard((location for location, _ in files), storage)
        raise


def _next_pointer(change: PointerChange) -> MetadataPointer | None:
    if not isinstance(change.metadata, TableMetadata):
        return change.metadata
    base = None if change.base is None else change.base.metadata_location
    return MetadataPointer(next_location(change.metadata, base))
