"""Locations of files from ended registrations (modak.former_locations), listed until the files are removed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mirror_pump.json_documents import JsonDocument
from mirror_pump.model import TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import TypedRow, fetch_rows
from sql import queries

_SQL = queries("former_locations")


class EndedBy(StrEnum):
    """What ended a registration."""

    UNREGISTER = "unregister"
    REGISTER = "register"
    """The table had been dropped, and another one of its name was registered."""


@dataclass(frozen=True)
class FormerLocation(TypedRow, JsonDocument):
    """A storage location that belonged to one registration."""

    location: str
    """Root URI of its files."""
    table: TableName
    """The lake table's name then; a table that is registered now may have it too."""
    metadata_location: str | None
    """The former lake table's newest metadata file; None if the catalog did not have the table any more."""
    registered_at: datetime
    ended_at: datetime
    ended_by: EndedBy
    """`register`: the table had been dropped, and another one of its name was registered."""
    only_copy: bool | None
    """Whether the lake may have had rows then that the heap did not have. None: recorded by a version that did not say
    so."""


@dataclass(frozen=True)
class _Pointer:
    """A row of the query `pointers`: a table of an Iceberg catalog."""

    catalog_name: str
    table_namespace: str
    table_name: str


def record_former_location(connection: PgConnection, table_id: TableId, ended_by: EndedBy, *, only_copy: bool) -> None:
    """Records the location of a registration's files, in the transaction that ends the registration. `only_copy`:
    whether the lake has rows that the heap does not have."""
    connection.execute(_SQL["record"], {"table_id": table_id, "ended_by": ended_by.value, "only_copy": only_copy})


def record_feed_location(connection: PgConnection, feed_id: int) -> None:
    """As `record_former_location`, of a change feed."""
    connection.execute(_SQL["record_feed"], (feed_id,))


def former_locations(connection: PgConnection) -> tuple[FormerLocation, ...]:
    """All former locations, ordered by table and age."""
    with source_errors("reading where former registrations had their files"):
        return tuple(fetch_rows(connection, FormerLocation, _SQL["list"]))


def is_former(connection: PgConnection, pointer: str) -> bool:
    """Whether a metadata file is of a former registration."""
    with source_errors("reading where former registrations had their files"):
        return connection.execute(_SQL["is_former"], {"pointer": pointer}).fetchone() is not None


def note_newest_metadata(connection: PgConnection, pointer: str) -> None:
    """Records this metadata file for its former location, if it has one, before the catalog removes the lake table."""
    connection.execute(_SQL["committed"], {"pointer": pointer})


def forget_former_location(connection: PgConnection, location: str) -> None:
    """Removes a location whose files have been deleted."""
    with source_errors("forgetting a former location"):
        connection.execute(_SQL["forget"], {"location": location})


def users_of(connection: PgConnection, location: FormerLocation) -> list[str]:
    """The users of files at the location: registrations, and tables of the Iceberg catalog. The former lake table
    itself does not count, unless a registration has its name by now."""
    where = {"location": location.location}
    registered = fetch_rows(connection, TableName, _SQL["registered"], where)
    lake_pointer = _Pointer("lake", location.table.schema, location.table.name)
    pointers = fetch_rows(connection, _Pointer, _SQL["pointers"], where)
    others = [TableName(pointer.table_namespace, pointer.table_name) for pointer in pointers if pointer != lake_pointer]
    return [f"registered table {name}" for name in registered] + [f"lake table {name}" for name in others]
