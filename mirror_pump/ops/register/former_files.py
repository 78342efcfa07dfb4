"""Removes files of registrations that have ended, when somebody asks for it.

Invariant: nothing is deleted outside of the location, and nothing in it before the catalog says, in a transaction that
has committed, that nobody reads there: no registration and no table of the Iceberg catalog has files at, below or above
it. A location that was left is never taken again (registering makes a new name), so that stays true. The catalog
forgets the location only when it is empty: whoever is killed in between finds it listed, and removes the rest.
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
"""How the locations end that registering makes (registration._new_lake_table): any other may hold anything."""


@dataclass(frozen=True)
class FormerFiles:
    """A former location, and what is there."""

    former: FormerLocation
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """An entry of what `unregister --list --json` prints."""
        return self.former.to_json() | {"files": self.files, "size_bytes": self.size_bytes}


def list_former_files(connection: PgConnection, storage: StorageOptions) -> tuple[FormerFiles, ...]:
    """All former locations, with what the storage has there now. Raises LakeError."""
    found = []
    for former in former_locations(connection):
        sizes = [file.size_bytes for file in list_files(former.location, storage)]
        found.append(FormerFiles(former, len(sizes), sum(sizes)))
    return tuple(found)


def remove_former_files(
    connection: PgConnection, slot: str, locations: Sequence[FormerLocation], storage: StorageOptions
) -> None:
    """Removes the files at these locations, and the former lake tables from the catalog that still name them.

    Does again whatever was begun and not ended. Raises TableError for a location that somebody needs, and LakeError.
    """
    for former in locations:
        _give_up(connection, slot, former)
        delete_tree(former.location, storage)
        forget_former_location(connection, former.location)


def _give_up(connection: PgConnection, slot: str, former: FormerLocation) -> None:
    """Take the former lake table out of the catalog, if it is still there and is the former one's."""
    if _OWN_PLACE.search(former.location) is None:
        raise TableError(
            f"{former.location} is no place that registering made for {former.table}: nothing is deleted there",
            "look at what is there, and remove it by hand; then delete the row from modak.former_locations",
        )
    with source_errors(f"taking {former.table} out of the catalog"), connection.transaction():
        # Registering, unregistering and publishing hold this row too.
        connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": slot})
        users = users_of(connection, former)
        if users:
            raise TableError(
                f"files of {former.table} at {former.location} are in use: {', '.join(users)}",
                "drop that table first, if nobody needs it (mirror-pump connect shows how engines reach the catalog)",
            )
        pointer = load_pointer(connection, former.table.schema, former.table.name)
        if pointer is not None and pointer.startswith(former.location.rstrip("/") + "/"):
            delete_pointer(connection, former.table.schema, former.table.name)
