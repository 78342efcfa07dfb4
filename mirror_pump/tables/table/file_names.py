"""One name for each file: engines name local files with and without a scheme, and know object stores by several."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mirror_pump.errors import LakeError
from mirror_pump.lake.document.metadata_files import metadata_directory
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StoredFile, join, local_path
from mirror_pump.storage_kinds import one_spelling


def same_name(location: str) -> str:
    """Equal for two locations of one file."""
    local = local_path(location)
    return one_spelling(location) if local is None else os.path.normpath(local)


def is_within(location: str, directory: str) -> bool:
    """Whether a location is a directory or below it."""
    return f"{same_name(location)}/".startswith(f"{same_name(directory).rstrip('/')}/")


def without_dots(location: str) -> str:
    """A local location without `.` and `..`, which files are not named with; others as they are."""
    local = local_path(location)
    if local is None or not {".", ".."} & set(location.split("/")):
        return location
    return (
        f"{location[: location.index('/')]}//{local.resolve()}"
        if location.startswith("file:")
        else str(local.resolve())
    )


def require_alone(metadata: TableMetadata, listed: Iterable[StoredFile]) -> None:
    """Raises LakeError if the metadata of another table is among the files of a table's directory."""
    directories = {same_name(metadata_directory(metadata)), same_name(join(metadata.location, "metadata"))}
    for file in listed:
        if file.location.endswith(".metadata.json") and same_name(file.location).rpartition("/")[0] not in directories:
            raise LakeError(
                f"{file.location} is the metadata of another table within {metadata.location}",
                "move one of the two tables, or remove files of neither",
            )
