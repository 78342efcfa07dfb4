"""One name for each file: engines name local files with and without a scheme, and know object stores by several."""

from __future__ import annotations

import os

from mirror_pump.lake.storage import local_path
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
