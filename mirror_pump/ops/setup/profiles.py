"""Adds and lists storage profiles, and chooses the one for tables that name none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.ops.setup.undo import INIT_LOCK
from mirror_pump.settings.config import Settings
from mirror_pump.settings.credentials import check_reference, is_property, options_of
from mirror_pump.settings.storage_profiles import (
    DEFAULT_PROFILE,
    StorageProfile,
    is_profile_name,
    overlapping,
    refuse_unreadable,
)
from mirror_pump.source.catalog.catalog_schema import require_current
from mirror_pump.source.catalog.other_mirrors import profiles_of_others
from mirror_pump.source.catalog.profiles import (
    find_profile,
    lock_profiles,
    make_default,
    read_profiles,
    store_profile,
    tables_by_profile,
)
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.storage_kinds import S3, kind_of


@dataclass(frozen=True)
class ListedProfile:
    """A profile, and how many registered tables it has."""

    profile: StorageProfile
    tables: int
    """How many registered tables have it."""

    def to_json(self) -> dict[str, Any]:
        """Return one entry of the output of `profile list --json` (docs/cli-json.md)."""
        profile = self.profile
        return {
            "profile": profile.name,
            "warehouse": profile.warehouse,
            "options": dict(profile.options),
            "credentials": profile.credential_ref,
            "default": profile.is_default,
            "tables": self.tables,
        }


def described_profile(
    name: str, warehouse: str, options: Sequence[str], endpoint: str | None, region: str | None, reference: str | None
) -> StorageProfile:
    """The profile that the arguments of `profile add` describe. Raises UsageError, without repeating a secret."""
    if not is_profile_name(name):
        raise UsageError(f"{name!r} is no name for a profile", "use 1 to 63 of A-Z, a-z, 0-9, _ and -")
    if name == DEFAULT_PROFILE:
        raise UsageError(
            f"the profile {DEFAULT_PROFILE} is what `init` and the storage settings describe",
            "give --warehouse and --storage-endpoint to `mirror-pump init`, or choose another name",
        )
    check_reference(reference, "archive")
    refuse_unreadable(warehouse)
    properties = options_of(options, is_property, "a storage property, such as s3.connect-timeout=5")
    names = (kind_of(warehouse) or S3).short_names
    given = {key: value for key, value in (("endpoint", endpoint), ("region", region)) if value is not None}
    for key in given.keys() - names.keys():
        raise UsageError(f"a store at {warehouse} has no {key}", f"leave --{key} out")
    properties |= {names[key]: value for key, value in given.items()}
    return StorageProfile(name, warehouse, properties, reference)


def add_profile(settings: Settings, profile: StorageProfile, *, default: bool) -> bool:
    """Store a profile, or change the one of its name. Returns False if it was there just so.

    Raises UsageError if its warehouse overlaps another's, or if tables are mirrored into the one that it had.
    """
    with _connected(settings) as connection, source_errors("storing the profile"), connection.transaction():
        # As an init does, first of all: no mirror stores a warehouse while another one looks.
        connection.execute(f"SELECT pg_advisory_xact_lock({INIT_LOCK})".encode())
        lock_profiles(connection)
        profiles = {stored.name: stored for stored in read_profiles(connection)}
        other = overlapping(profile, (*profiles.values(), *profiles_of_others(connection)))
        if other is not None:
            raise UsageError(
                f"{profile.warehouse} and the warehouse of profile {other.name}, {other.warehouse}, are one within the"
                " other: a file there would have two profiles",
                "give another prefix, also where the endpoints differ",
            )
        stored = profiles.get(profile.name)
        if stored is not None and stored.warehouse != profile.warehouse:
            tables = tables_by_profile(connection).get(profile.name, 0)
            if tables:
                raise UsageError(
                    f"{tables} tables of profile {profile.name} are mirrored into {stored.warehouse}",
                    "add a profile of another name, then unregister and register the tables",
                )
        same = stored is not None and (stored.warehouse, stored.options, stored.credential_ref) == (
            profile.warehouse,
            profile.options,
            profile.credential_ref,
        )
        if not same:
            store_profile(connection, profile)
        if default:
            make_default(connection, profile.name)
    return not same


def choose_default(settings: Settings, name: str) -> None:
    """Make a profile the one of tables that name none. Raises SourceError if there is none of this name."""
    with _connected(settings) as connection, source_errors("storing the profile"), connection.transaction():
        lock_profiles(connection)
        make_default(connection, find_profile(connection, name).name)


def list_profiles(settings: Settings) -> tuple[ListedProfile, ...]:
    """All profiles, by name."""
    with _connected(settings) as connection:
        tables = tables_by_profile(connection)
        return tuple(ListedProfile(profile, tables.get(profile.name, 0)) for profile in read_profiles(connection))


def _connected(settings: Settings) -> PgConnection:
    connection = connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-profile")
    try:
        require_current(connection)
    except BaseException:
        connection.close()
        raise
    return connection
