"""Storage profiles: warehouses by name, with the options of their storage and a reference to their credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mirror_pump.errors import UsageError

DEFAULT_PROFILE = "default"
"""The profile that `init` and the storage settings describe."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


@dataclass(frozen=True)
class StorageProfile:
    """A row of modak.storage_profiles. It holds no secrets."""

    name: str
    warehouse: str
    """Root URI of its tables' files, without a slash at its end; empty before `init`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Storage properties under pyiceberg's FileIO names."""
    credential_ref: str | None = None
    """Names the credentials (mirror_pump.settings.credentials). None: those of the settings, with their endpoint and
    region."""
    is_default: bool = False
    """Whether tables are registered with it that name none."""

    def holds(self, location: str) -> bool:
        """Whether a location is the warehouse or below it."""
        return bool(self.warehouse) and below(location, self.warehouse)


def is_profile_name(text: str) -> bool:
    """Whether a profile can have this name: 1 to 63 of A-Z, a-z, 0-9, _ and -."""
    return _NAME.fullmatch(text) is not None


def below(location: str, root: str) -> bool:
    """Whether a location is `root`, or in the directory `root`."""
    root = root.rstrip("/")
    return location.rstrip("/") == root or location.startswith(root + "/")


def warehouse_of(table_location: str) -> str:
    """The warehouse of a mirrored table. Registration places a table two levels below it, in directories for schema and
    table."""
    return table_location.rstrip("/").rsplit("/", 2)[0]


def refuse_unreadable(warehouse: str) -> None:
    """Raise UsageError for a new warehouse whose files an engine could not open: pyiceberg ends a path at `#` and `?`
    and leaves out line feeds and tabs, DuckDB takes a quotation mark for the begin of a quoted name."""
    for character in warehouse:
        if character in '#?"' or not character.isprintable():
            raise UsageError(
                f"a warehouse cannot have {character!r} in its path: some engines could not open its files",
                "give a directory, or a prefix, without",
            )


def overlapping(profile: StorageProfile, others: Iterable[StorageProfile]) -> StorageProfile | None:
    """Another profile whose warehouse lies within this one's, or the other way round. A location would have two
    profiles."""
    for other in others:
        comparable = other.name != profile.name and other.warehouse and profile.warehouse
        if comparable and (other.holds(profile.warehouse) or profile.holds(other.warehouse)):
            return other
    return None
