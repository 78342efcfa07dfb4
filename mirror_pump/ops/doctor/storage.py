"""Whether a file can be written to the warehouse, read, listed and deleted: what the pump does all the time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.profile_access import ProfileAccess
from mirror_pump.lake.storage import (
    StorageOptions,
    delete,
    discard,
    exists,
    join,
    list_files,
    local_path,
    read_bytes,
    storage_of,
    write_bytes,
)
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, failure, ok, skipped
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile

PROBE_DIRECTORY = ".mirror-pump-doctor"
"""The directory of the file in the warehouse. It has no other files, so that listing it costs nothing."""
_CONTENT = b"mirror-pump doctor"
_DEADLINE = 60.0


def _run(site: Site) -> Iterator[Finding]:
    settings = site.lake
    if settings.warehouse is None:
        yield skipped("no warehouse is known: give --warehouse, or run `mirror-pump init` first")
    elif site.mirror is None:
        yield from probe(settings.warehouse, storage_of(settings), initialised=False)
    else:
        options = lake_storage(settings)
        for warehouse in reachable_warehouses(options):
            # One that does not answer must not hide what is found about the others.
            try:
                yield from probe(warehouse.root, options, initialised=True)
            except MirrorPumpError as error:
                yield failure(error)


def probe(warehouse: str, options: StorageOptions, *, initialised: bool) -> Iterator[Finding]:
    """Write a file to a warehouse, read, list and delete it. Raises LakeError. `initialised`: a directory has to be
    there."""
    path = local_path(warehouse)
    if path is not None and not path.is_dir():
        yield _missing(path, initialised=initialised)
        return
    # Two doctors at a time must not take each other's file away.
    location = join(warehouse, PROBE_DIRECTORY, secrets.token_hex(8))
    try:
        faults = list(_faults(location, options))
    finally:
        discard([location], options)
        if path is not None:
            # Another doctor may have its file there.
            with suppress(OSError):
                (path / PROBE_DIRECTORY).rmdir()
    yield from faults or [ok(f"a file in {warehouse} was written, read, listed and deleted")]


def _missing(path: Path, *, initialised: bool) -> Finding:
    """The finding for a directory that is not there. A mirror's must be; else `init` makes it."""
    if initialised or path.exists():
        return failed(f"the warehouse {path} is no directory, or is not mounted", f"mount it, or: mkdir -p '{path}'")
    parent = next(parent for parent in path.parents if parent.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        return failed(f"the warehouse {path} does not exist, and {parent} may not be written", f"mkdir -p '{path}'")
    return ok(f"the warehouse {path} does not exist yet, and `mirror-pump init` can make it")


def _faults(location: str, options: StorageOptions) -> Iterator[Finding]:
    """Write a file, read, list and delete it. Yields what was wrong without an error. Raises LakeError."""
    write_bytes(location, _CONTENT, options)
    if read_bytes(location, options) != _CONTENT:
        yield failed(f"{location} was read with another content than was written", "see what stands before the storage")
    directory = location.rpartition("/")[0]
    if location not in {file.location for file in list_files(directory, options)}:
        yield failed(
            f"{location} is not listed after it was written", "give the access key the right to list the bucket"
        )
    delete(location, options)
    if exists(location, options):
        yield failed(f"{location} is still there after it was deleted", "see the storage's retention or versioning")


STORAGE = DoctorCheck("storage", _run, deadline=_DEADLINE)


def try_profiles(settings: Settings, profiles: Sequence[StorageProfile]) -> Iterator[tuple[str, Finding]]:
    """For each profile its name, and what was found: a file is written to its warehouse, read, listed and deleted.

    `mirror-pump profile test`. The profiles need not be in the catalog. Raises nothing but KeyboardInterrupt.
    """
    access = ProfileAccess(settings.storage_properties, lambda: profiles)
    options = StorageOptions(profiles=access)
    for profile in profiles:
        try:
            for finding in probe(profile.warehouse, options, initialised=False):
                yield profile.name, finding
        except MirrorPumpError as error:
            yield profile.name, failure(error)
