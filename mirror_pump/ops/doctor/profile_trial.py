"""`mirror-pump profile test`: tries a storage profile out, as `doctor` does with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirror_pump.config import Settings
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.profile_access import ProfileAccess
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.doctor.check import Finding, failure
from mirror_pump.ops.doctor.storage import probe
from mirror_pump.storage_profiles import StorageProfile


def try_profiles(settings: Settings, profiles: Sequence[StorageProfile]) -> Iterator[tuple[str, Finding]]:
    """For each profile its name, and what was found: a file is written to its warehouse, read, listed and deleted.

    The profiles need not be in the catalog. Raises nothing but KeyboardInterrupt.
    """
    access = ProfileAccess(settings.storage_properties, lambda: profiles)
    options = StorageOptions(profiles=access)
    for profile in profiles:
        try:
            for finding in probe(profile.warehouse, options, initialised=False):
                yield profile.name, finding
        except MirrorPumpError as error:
            yield profile.name, failure(error)
