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
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.lake.format.feed_schema import FEED_SUFFIX
from mirror_pump.lake.storage import StorageOptions, delete_tree, list_files
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.source.catalog.former_locations import (
    FormerLocation,
    forget_former_location,
    former_locations,
    users_of,
)
from mirror_pump.source.catalog.kept_moments import drop_commands, moments_at
from mirror_pump.source.connect import PgConnection, source_errors

_OWN_PLACE = re.compile(rf"/[A-Za-z0-9_-]+-[0-9a-f]{{12}}({FEED_SUFFIX}-[0-9a-f]{{6}})?/?$")
"""The end of each location that a registration makes (registration._new_lake_table, feed_registration.stage_feed).
Other places may hold anything."""


@dataclass(frozen=True)
class FormerFiles:
    """A former location, with the number and the size of the files in it."""

    former_location: FormerLocation
    files: int
    """What is below `location` now, whatever it is."""
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return one entry of the output of `unregister --list --json`."""
        return self.former_location.to_json() | {"files": self.files, "size_bytes": self.size_bytes}


def list_former_files(connection: PgConnection, storage: StorageOptions) -> tuple[FormerFiles, ...]:
    """Return all former locations, with what the storage holds there now. Raises LakeError."""
    former_files = []
    for former_location in former_locations(connection):
        sizes = [file.size_bytes for file in list_files(former_location.location, storage)]
        former_files.append(FormerFiles(former_location, len(sizes), sum(sizes)))
    return tuple(former_files)


def remove_former_files(
    connection: PgConnection, slot: str, locations: Sequence[FormerLocation], storage: StorageOptions
) -> None:
    """Remove the files at these locations, and the catalog entries of former lake tables that still point to them.

    A removal that was interrupted can be repeated. Raises TableError for a location that is in use, and LakeError.
    """
    for former_location in locations:
        _give_up(connection, slot, former_location)
        delete_tree(former_location.location, storage)
        forget_former_location(connection, former_location.location)


def _give_up(connection: PgConnection, slot: str, former_location: FormerLocation) -> None:
    """Remove the former lake table from the catalog, if the catalog's entry still points into the former location.

    Raises TableError if no registration made the location, or if it is in use.
    """
    if _OWN_PLACE.search(former_location.location) is None:
        raise TableError(
            f"{former_location.location} was not made by a registration of {former_location.table}:"
            " nothing is deleted there",
            "see what is there and remove it by hand; then delete the row from modak.former_locations",
        )
    with source_errors(f"taking {former_location.table} out of the catalog"), connection.transaction():
        # Registering, unregistering and publishing take it too.
        lock = SlotLock.take(connection, slot)
        moments = moments_at(connection, former_location.location)
        if moments:
            raise TableError(
                f"files of {former_location.table} at {former_location.location} are needed by moments that are kept:"
                f" {', '.join(moments)}",
                f"give them up first: {drop_commands(moments)}",
            )
        users = users_of(connection, former_location)
        if users:
            raise TableError(
                f"files of {former_location.table} at {former_location.location} are in use: {', '.join(users)}",
                "first drop that table if it is not needed (`mirror-pump connect --engine ENGINE` shows how engines"
                " reach the catalog)",
            )
        pointer = load_pointer(connection, former_location.table.schema, former_location.table.name)
        if pointer is not None and pointer.startswith(former_location.location.rstrip("/") + "/"):
            lock.delete(former_location.table)
