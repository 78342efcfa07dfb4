"""Removes the files of former registrations, on request.

Invariant: nothing is deleted outside of the former location. Nothing in it is deleted before a committed transaction
has found in the catalog that it is not in use: no registration and no table of the Iceberg catalog has files at, below
or above it. That stays true because a former location is never used again: each registration makes a new name.
The catalog forgets the location only when it is empty. If a removal is killed halfway, the location is still listed,
and the next removal deletes the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.catalog import delete_pointer, load_pointer
from mirror_pump.lake.storage import StorageOptions, delete_tree, list_files
from mirror_pump.source.catalog.former_locations import (
    FormerLocation,
    forget_former_location,
    former_locations,
    users_of,
)
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_PUBLISH_SQL = queries("publish")

_OWN_PLACE = re.compile(r"/[A-Za-z0-9_-]+-[0-9a-f]{12}/?$")
"""The end of each location that a registration makes (registration._new_lake_table). Other places may hold anything."""


@dataclass(frozen=True)
class FormerFiles:
    """A former location, with the number and the size of the files in it."""

    former: FormerLocation
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return one entry of the output of `unregister --list --json`."""
        return self.former.to_json() | {"files": self.files, "size_bytes": self.size_bytes}


def list_former_files(connection: PgConnection, storage: StorageOptions) -> tuple[FormerFiles, ...]:
    """Return all former locations, with what the storage holds there now. Raises LakeError."""
    found = []
    for former in former_locations(connection):
        sizes = [file.size_bytes for file in list_files(former.location, storage)]
        found.append(FormerFiles(former, len(sizes), sum(sizes)))
    return tuple(found)


def remove_former_files(
    connection: PgConnection, slot: str, locations: Sequence[FormerLocation], storage: StorageOptions
) -> None:
    """Remove the files at these locations, and the catalog entries of former lake tables that still point to them.

    A removal that was interrupted can be repeated. Raises TableError for a location that is in use, and LakeError.
    """
    for former in locations:
        _give_up(connection, slot, former)
        delete_tree(former.location, storage)
        forget_former_location(connection, former.location)


def _give_up(connection: PgConnection, slot: str, former: FormerLocation) -> None:
    """Remove the former lake table from the catalog, if the catalog's entry still points into the former location.

    Raises TableError if no registration made the location, or if it is in use.
    """
    if _OWN_PLACE.search(former.location) is None:
        raise TableError(
            f"{former.location} was not made by a registration of {former.table}: nothing is deleted there",
            "see what is there and remove it by hand; then delete the row from modak.former_locations",
        )
    with source_errors(f"taking {former.table} out of the catalog"), connection.transaction():
        # Registering, unregistering and publishing lock this row too.
        connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": slot})
        users = users_of(connection, former)
        if users:
            raise TableError(
                f"files of {former.table} at {former.location} are in use: {', '.join(users)}",
                "first drop that table if it is not needed (`mirror-pump connect` shows how engines reach the catalog)",
            )
        pointer = load_pointer(connection, former.table.schema, former.table.name)
        if pointer is not None and pointer.startswith(former.location.rstrip("/") + "/"):
            delete_pointer(connection, former.table.schema, former.table.name)
