"""How the storage is reached: its properties, and what a location names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mirror_pump.storage_kinds import S3, kind_of, properties_in

if TYPE_CHECKING:
    from mirror_pump.settings.config import Settings

Content: TypeAlias = bytes | memoryview
"""Of a file."""

LOCAL = "file://"
_REFUSED_REMEDY = (
    "give other credentials, or give these the rights to read, write, list and delete below the location; nothing is"
    " lost: until then the frontier does not move"
)


class StorageAccess(Protocol):
    """Knows the storage profiles (mirror_pump.lake.profile_access)."""

    def properties_of(self, location: str) -> Mapping[str, str]:
        """The FileIO properties with which a remote location is reached. Raises CredentialsError, and LakeError."""
        ...

    def remedy_of(self, location: str) -> str:
        """What to do if the store does not accept the credentials for a location."""
        ...


@dataclass(frozen=True)
class StorageOptions:
    """How to reach the storage. Picklable: it travels to tasks. `repr()` shows no secrets."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """pyiceberg FileIO properties, such as `s3.endpoint` and `s3.access-key-id`; none are needed for file:// URIs. To
    read them, use `properties_of`."""
    fsync: bool = True
    """Flush local files and their directory entries to disk before anything refers to them: a publish that survives a
    power failure must not point to files that did not. Measured on ext4: 0.3 ms for a small file (0.06 without)."""
    make_directories: bool = True
    """Make the local directories that files are written into. Not for a pump: the directories of a table exist from its
    registration on, and one that is gone later is an error, not a place to begin again."""
    profiles: StorageAccess | None = field(default=None, repr=False, compare=False)
    """If set, each location is reached as its storage profile says, and `properties` is not used."""
    file_mode: int = 0o600
    """Permissions of new local files. The process's umask takes more away."""
    root: str | None = None
    """The location that `properties` are meant for. None: for all."""

    @property
    def directory_mode(self) -> int:
        """Permissions of new local directories, which those who can read their files can enter and list."""
        return self.file_mode | (self.file_mode & 0o444) >> 2

    def properties_of(self, location: str) -> Mapping[str, str]:
        """The FileIO properties for a remote location. They contain secrets: never print them. Raises CredentialsError
        if there are no credentials, and LakeError."""
        if self.profiles is not None:
            return self.profiles.properties_of(location)
        return self.properties if self.root is None else properties_in(self.root, location, self.properties)

    def remedy_of(self, location: str) -> str:
        """What to do if the store does not accept the credentials for a location."""
        return _REFUSED_REMEDY if self.profiles is None else self.profiles.remedy_of(location)


def storage_of(settings: Settings, root: str | None = None) -> StorageOptions:
    """How the settings reach tables that are in no storage profile. `root`: the location that they are meant for, of a
    file or of all tables; by default their warehouse."""
    root = root or settings.warehouse or ""
    properties = settings.storage_properties_for(kind_of(root) or S3)
    return StorageOptions(properties, fsync=settings.storage_fsync, file_mode=settings.file_mode, root=root)


def join(base: str, *parts: str) -> str:
    """`base` and `parts` as one URI."""
    return "/".join([base.rstrip("/"), *parts])


def local_path(location: str) -> Path | None:
    """The local path of a URI (file:///a/b, file:/a/b) or absolute path; None for a remote location.

    Iceberg locations are not percent-encoded, so nothing is decoded.
    """
    name = local_name(location)
    return None if name is None else Path(name)


def local_name(location: str) -> str | None:
    """As `local_path`, as text."""
    if location.startswith(LOCAL):
        return location.removeprefix(LOCAL)
    if location.startswith("file:/"):
        return location.removeprefix("file:")
    return location if location.startswith("/") else None
