"""Reads and writes storage profiles (modak.storage_profiles)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import TableId
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("profiles")


@dataclass(frozen=True)
class _ProfileRow:
    """A row of the query `select`."""

    name: str
    warehouse: str
    options: dict[str, Any]
    credential_ref: str | None
    is_default: bool

    def profile(self) -> StorageProfile:
        options = {key: str(value) for key, value in self.options.items()}
        return StorageProfile(self.name, self.warehouse, options, self.credential_ref, self.is_default)


def read_profiles(connection: PgConnection) -> tuple[StorageProfile, ...]:
    """All profiles, by name."""
    with source_errors("reading the storage profiles"):
        return tuple(row.profile() for row in fetch_rows(connection, _ProfileRow, _SQL["select"]))


def find_profile(connection: PgConnection, name: str | None) -> StorageProfile:
    """The profile of this name; without a name, the one for tables that name none. Raises SourceError if there is
    none."""
    profiles = read_profiles(connection)
    for profile in profiles:
        if profile.name == name or (name is None and profile.is_default):
            return profile
    if name is None:
        raise SourceError("no storage profile is the default", "mark one: mirror-pump profile set-default NAME")
    names = ", ".join(profile.name for profile in profiles)
    raise SourceError(
        f"there is no storage profile {name}",
        f"choose {names}; or make it: `mirror-pump profile add NAME --warehouse URI`",
    )


def profile_of(connection: PgConnection, table_id: TableId) -> str | None:
    """The name of a registered table's profile; None if the table is not registered."""
    with source_errors("reading a table's storage profile"):
        row = connection.execute(_SQL["of_table"], {"table_id": table_id}).fetchone()
    return None if row is None else str(row[0])


def require_unchanged(connection: PgConnection, profile: StorageProfile) -> None:
    """Keep others from changing the profile's warehouse until the end of the transaction, in which a table in it is
    registered. Raises TableError if it has changed since it was read."""
    with source_errors("reading the storage profile"):
        row = connection.execute(_SQL["lock"], {"name": profile.name}).fetchone()
    if row is None or row[0] != profile.warehouse:
        raise TableError(
            f"storage profile {profile.name} was changed by another session meanwhile", "Register it again."
        )


def lock_profiles(connection: PgConnection) -> None:
    """Keep others from changing profiles, and from registering tables with them, until the end of the transaction."""
    connection.execute(f"LOCK TABLE {SCHEMA}.storage_profiles IN EXCLUSIVE MODE")


def store_profile(connection: PgConnection, profile: StorageProfile) -> None:
    """Add the profile, or change the one of its name. `is_default` is left as it is."""
    connection.execute(
        _SQL["store"],
        {
            "name": profile.name,
            "warehouse": profile.warehouse,
            "options": Jsonb(dict(profile.options)),
            "credential_ref": profile.credential_ref,
        },
    )


def make_default(connection: PgConnection, name: str) -> None:
    """Make the profile the one of tables that name none. It has to exist."""
    connection.execute(_SQL["not_default"], {"name": name})
    connection.execute(_SQL["set_default"], {"name": name})


def tables_by_profile(connection: PgConnection) -> Mapping[str, int]:
    """The number of registered tables of each profile that has any."""
    with source_errors("reading the storage profiles"):
        return dict(connection.execute(_SQL["users"]).fetchall())
