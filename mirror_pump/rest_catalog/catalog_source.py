"""What warehouses are served from: the mirror, and catalogs of tables of their own.

A namespace is text here: its levels, joined by the separator that the protocol's paths have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableName
from mirror_pump.rest_catalog.protocol import NamespaceChange, RenameTableRequest
from mirror_pump.settings.credentials import is_secret
from mirror_pump.storage_kinds import kind_of

LEVELS = "\x1f"
"""Between the levels of a namespace."""


@dataclass(frozen=True)
class FoundTable:
    """A table as a client is to see it."""

    location: str
    """Its metadata file."""
    config: dict[str, str]
    """What the answer says besides."""
    storage: StorageOptions
    """How its files are reached."""


@dataclass(frozen=True)
class PreparedTable:
    """A table that a client is about to write, and then to create by a commit."""

    metadata: JsonValue
    location: str
    """Root URI of its files."""
    storage: StorageOptions
    """How its files are reached."""


@dataclass(frozen=True)
class AttachedWarehouse:
    """The answer to a client that attaches a warehouse."""

    prefix: str
    defaults: dict[str, str]
    unreadable: tuple[TableName, ...] = ()
    """The mirrored tables that are not part of it, in order."""
    writable: bool = False
    transactions: bool = False
    """Whether several tables can be changed in one commit, if any can."""
    rows: bool = False
    """Whether names are rows of the catalog (RowCatalog), if tables can be changed."""


@dataclass(frozen=True)
class SentChange:
    """A client's change of one table."""

    namespace: str
    name: str
    body: JsonValue
    """`CommitTableRequest` in the protocol."""
    by_name: bool = False
    """Whether a table that it creates is in the directory that its name gives."""


class TableWriter(Protocol):
    """Changes the tables behind one prefix. Everything raises ProtocolError, and the catalog's own errors."""

    def create_namespace(self, namespace: str, properties: Mapping[str, str]) -> Mapping[str, str] | None:
        """Its properties, as they are kept; None if the catalog keeps none."""

    def change_namespace(self, namespace: str, change: NamespaceChange) -> Sequence[str]:
        """Removes and sets properties. Returns the names of those that were removed."""

    def drop_namespace(self, namespace: str) -> None:
        """One with nothing in it."""

    def create(self, namespace: str, body: JsonValue) -> FoundTable | PreparedTable:
        """Creates a table from `CreateTableRequest`, or only prepares it (`stage-create`)."""

    def commit(self, changes: Sequence[SentChange]) -> Sequence[FoundTable]:
        """Makes all changes or none, if each table meets its change's requirements."""

    def drop(self, namespace: str, name: str, *, purge: bool) -> None: ...

    def rename(self, request: RenameTableRequest) -> None:
        """Gives a table another name. Its directory stays."""

    def register(self, namespace: str, body: JsonValue) -> FoundTable:
        """Gives a name to the table of a metadata file, from `RegisterTableRequest`."""


class CatalogView(Protocol):
    """The tables behind one prefix."""

    def namespaces(self) -> Sequence[str]:
        """All namespaces, and those above them, in order."""

    def tables(self, namespace: str) -> Sequence[str]:
        """Names of a namespace's tables, in order; none for one that does not exist."""

    def properties(self, namespace: str) -> Mapping[str, str] | None:
        """Those of a namespace that exists; None if the catalog keeps none."""

    def find(self, namespace: str, name: str) -> FoundTable:
        """The table of that name. Raises ProtocolError without one."""

    def writer(self) -> TableWriter:
        """Raises ProtocolError, with the reason, if these tables are read-only."""


class CatalogSource(Protocol):
    """What warehouses are served from. Threads share it. Everything raises ProtocolError, SourceError and LakeError."""

    @property
    def warehouses(self) -> Sequence[str]:
        """What a client may attach, or examples of it."""

    def attach(self, warehouse: str) -> AttachedWarehouse | None:
        """Begins a client's reading of a warehouse; None if it is not of this source."""

    def view(self, prefix: str) -> CatalogView | None:
        """What is behind a prefix; None if it is not of this source."""


def storage_hints(location: str, storage: StorageOptions, *, credentials: bool) -> dict[str, str]:
    """Properties of Iceberg's FileIO for a table whose metadata file is at `location`; none for a local one.

    `credentials`: with those by which this process reaches the storage. Raises CredentialsError if there are none.
    """
    kind = kind_of(location)
    if kind is None:
        return {}
    properties = {
        name: value
        for name, value in kind.of_kind(storage.properties_of(location)).items()
        if not is_secret(name) or (credentials and name in kind.vended)
    }
    return kind.hints(location, properties)
