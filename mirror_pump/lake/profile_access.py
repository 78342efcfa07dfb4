"""Finds out how a location is reached: by the storage profile whose warehouse it is in.

In the process that began the work, profiles come from the catalog and credentials from the environment or a file, anew
whenever these have changed. A copy that travels to a task holds what was found when it was sent, so a task needs
neither the catalog nor credentials of its own, and nothing of them is in Spark's settings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirror_pump.errors import CredentialsError, LakeError, MirrorPumpError
from mirror_pump.settings.credentials import CredentialSource
from mirror_pump.settings.storage_profiles import DEFAULT_PROFILE, StorageProfile, below
from mirror_pump.storage_kinds import S3, kind_of, properties_in

_FRESH = 60.0
"""Seconds after which profiles are read again, since an operator may have changed them."""
_SETTINGS_REMEDY = (
    "renew the storage's access key in the settings and start this program again; keys that come from where the store's"
    " own tools look for them are renewed without that"
)
_WAITS = "nothing is lost: the frontier does not move until then"


@dataclass(frozen=True)
class ReachableWarehouse:
    """A warehouse and how it is reached, as a task gets it."""

    root: str
    properties: Mapping[str, str] = field(repr=False)
    remedy: str
    """What to do if the store does not accept the credentials."""
    error: tuple[str, str] | None = None
    """Why there are no credentials, and what to do; None if there are."""

    def reached(self) -> Mapping[str, str]:
        """The FileIO properties. Raises CredentialsError."""
        if self.error is not None:
            raise CredentialsError(*self.error)
        return self.properties


@dataclass(frozen=True)
class SentProfiles:
    """What a task knows of the profiles: a StorageAccess."""

    warehouses: tuple[ReachableWarehouse, ...]

    def properties_of(self, location: str) -> Mapping[str, str]:
        return self._of(location).reached()

    def remedy_of(self, location: str) -> str:
        return self._of(location).remedy

    def _of(self, location: str) -> ReachableWarehouse:
        for warehouse in self.warehouses:
            if below(location, warehouse.root):
                return warehouse
        # To fall back on other credentials could write to a bucket of the same name elsewhere.
        raise LakeError(
            f"{location} is in no storage profile's warehouse, as far as this task was told",
            "try again; a pump does so by itself, and looks the profiles up before",
        )


class ProfileAccess:
    """What this process knows of the profiles: a StorageAccess. Threads may share it."""

    def __init__(self, settings: Mapping[str, str], load: Callable[[], Sequence[StorageProfile]]) -> None:
        """`settings`: the storage properties of the settings. `load` reads the profiles from the catalog."""
        self._settings = settings
        self._load = load
        self._lock = threading.Lock()
        self._cached_profiles: tuple[StorageProfile, ...] | None = None
        self._loaded_at = 0.0
        self._sources: dict[tuple[str, str], CredentialSource] = {}

    def use(self, profiles: Sequence[StorageProfile]) -> None:
        """Take over the profiles that the caller has just read."""
        self._cached_profiles, self._loaded_at = tuple(profiles), time.monotonic()

    def properties_of(self, location: str) -> Mapping[str, str]:
        profile = self._of(location)
        # Of a profile that is gone, such as a former warehouse of `init`: what `init` wrote there, the settings reach.
        return self._of_settings(location) if profile is None else self._reached(profile)

    def remedy_of(self, location: str) -> str:
        profile = self._of(location)
        return f"{_SETTINGS_REMEDY}; {_WAITS}" if profile is None else self._remedy(profile)

    def warehouses(self) -> tuple[ReachableWarehouse, ...]:
        """All warehouses, and how they are reached now."""
        warehouses = []
        for profile in self._profiles():
            properties: Mapping[str, str] = {}
            error = None
            try:
                properties = self._reached(profile)
            except CredentialsError as missing:
                error = str(missing), missing.remedy
            if profile.warehouse:
                warehouses.append(ReachableWarehouse(profile.warehouse, properties, self._remedy(profile), error))
        return tuple(warehouses)

    def __reduce__(self) -> tuple[Any, ...]:
        return SentProfiles, (self.warehouses(),)

    def _profiles(self) -> tuple[StorageProfile, ...]:
        with self._lock:
            if self._cached_profiles is None or time.monotonic() - self._loaded_at > _FRESH:
                try:
                    self.use(self._load())
                except MirrorPumpError:
                    # The database is away for a moment: what was known is still true, most likely.
                    if self._cached_profiles is None:
                        raise
            assert self._cached_profiles is not None
            return self._cached_profiles

    def _of(self, location: str) -> StorageProfile | None:
        for _ in range(2):
            for profile in self._profiles():
                if profile.holds(location):
                    return profile
            # An operator may have added the profile a moment ago.
            self._loaded_at = float("-inf")
        return None

    def _of_settings(self, location: str) -> Mapping[str, str]:
        root = next((profile.warehouse for profile in self._profiles() if profile.name == DEFAULT_PROFILE), "")
        return properties_in(root, location, self._settings)

    def _reached(self, profile: StorageProfile) -> Mapping[str, str]:
        if profile.name == DEFAULT_PROFILE:
            # Settings that were given win over what is stored.
            return {**profile.options, **self._credentials(profile), **self._settings}
        if profile.credential_ref is None:
            return {**self._settings, **profile.options}
        return {**self._credentials(profile), **profile.options}

    def _credentials(self, profile: StorageProfile) -> Mapping[str, str]:
        source = self._source(profile)
        if source is None:
            return {}
        try:
            return source.properties()
        except CredentialsError as error:
            raise CredentialsError(f"storage profile {profile.name}: {error}", f"{error.remedy}; {_WAITS}") from None

    def _source(self, profile: StorageProfile) -> CredentialSource | None:
        reference = profile.credential_ref
        if reference is None:
            return None
        kind = kind_of(profile.warehouse) or S3
        return self._sources.setdefault((reference, kind.scheme), CredentialSource(reference, kind))

    def _remedy(self, profile: StorageProfile) -> str:
        source = self._source(profile)
        if source is None:
            return f"storage profile {profile.name}: {_SETTINGS_REMEDY}; {_WAITS}"
        again = "this program reads them again by itself" if source.from_file else "start this program again with them"
        return (
            f"storage profile {profile.name}: renew the credentials in {source.place}; {again}. {_WAITS.capitalize()}"
        )
