"""Finds metadata files of a table that are newer than the one that the catalog names.

A catalog that went back in time, because its database was restored or lost its last commits in a promotion, leaves such
files behind: readers may have seen them. So does a pump that was killed between staging and publishing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mirror_pump.errors import LakeError
from mirror_pump.lake.metadata.metadata_files import read_any_version
from mirror_pump.lake.storage import StorageOptions, list_files
from mirror_pump.model import Lsn

_NUMBERED = re.compile(r"v?(\d+)-.*\.metadata\.json$")
_MOST_READ = 20
"""Newest files that are read. The frontier rises with the number, except in files of a copy, which have none."""


@dataclass(frozen=True)
class NewerMetadata:
    """The newest state of a table that the catalog does not know."""

    location: str
    """URI of the metadata file."""
    frontier: Lsn
    """The frontier that its current snapshot promised."""


def newest_unknown(location: str, storage: StorageOptions) -> NewerMetadata | None:
    """The file with the highest frontier among those newer than the metadata file `location`; None if there is none.

    Ignores files without a frontier and files that cannot be read. Raises LakeError if the storage does not answer.
    """
    directory, _, name = location.rpartition("/")
    known = _number(name)
    if known is None:
        return None
    numbered = ((_number(file.location.rpartition("/")[2]), file.location) for file in list_files(directory, storage))
    newer = sorted(((number, file) for number, file in numbered if number is not None and number > known), reverse=True)
    found = [frontier for _, file in newer[:_MOST_READ] if (frontier := _frontier(file, storage)) is not None]
    return max(found, key=lambda metadata: metadata.frontier, default=None)


def _number(name: str) -> int | None:
    matched = _NUMBERED.match(name)
    return None if matched is None else int(matched[1])


def _frontier(location: str, storage: StorageOptions) -> NewerMetadata | None:
    try:
        snapshot = read_any_version(location, storage).current_snapshot
    except LakeError:
        # Half of a file, or removed by a sweep meanwhile.
        return None
    frontier = None if snapshot is None else snapshot.summary.frontier
    return None if frontier is None else NewerMetadata(location, frontier)
