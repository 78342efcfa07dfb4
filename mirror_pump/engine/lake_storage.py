"""The storage of a mirror: its settings together with the storage profiles in its catalog."""

from __future__ import annotations

from mirror_pump.lake.profile_access import ProfileAccess, ReachableWarehouse
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.profiles import read_profiles
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect


def lake_storage(settings: Settings, *, fsync: bool | None = None, make_directories: bool = True) -> StorageOptions:
    """How the files of this mirror's tables are reached, each by its table's storage profile.

    Connects to the database when it is first used for a remote location, or sent to a task. `fsync`: by default what
    the settings say.
    """

    def load() -> tuple[StorageProfile, ...]:
        with connect(
            settings.require_dsn(),
            autocommit=True,
            application_name="mirror-pump-profiles",
            lock_timeout=CATALOG_LOCK_TIMEOUT,
        ) as connection:
            return read_profiles(connection)

    return StorageOptions(
        {},
        settings.storage_fsync if fsync is None else fsync,
        make_directories,
        ProfileAccess(settings.storage_properties, load),
        settings.file_mode,
    )


def refresh_profiles(storage: StorageOptions, connection: PgConnection) -> None:
    """Use the profiles as they are in the catalog now."""
    if isinstance(storage.profiles, ProfileAccess):
        storage.profiles.use(read_profiles(connection))


def reachable_warehouses(storage: StorageOptions) -> tuple[ReachableWarehouse, ...]:
    """The warehouses of all profiles, and how they are reached, as a process that began the work knows them."""
    return storage.profiles.warehouses() if isinstance(storage.profiles, ProfileAccess) else ()
