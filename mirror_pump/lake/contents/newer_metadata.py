"""Finds metadata files of a table that the catalog does not know.

A catalog that went back in time, because its database was restored or lost its last commits in a promotion, leaves such
files behind: readers may have seen them. So does a pump that was killed between staging and publishing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mirror_pump.errors import LakeError
from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.storage import StorageOptions, StoredFile, list_files
from mirror_pump.model import Lsn

_NUMBERED = re.compile(r"v?(\d+)-.*\.metadata\.json$")
_ENOUGH = 20
"""Number of files of the kind that is looked for after which the newest of them is good enough for a message."""


@dataclass(frozen=True)
class Promise:
    """The frontier with which a snapshot was published, and the server's timeline. To readers of a tiered table it
    promised nothing."""

    frontier: Lsn
    timeline: int | None
    """None in a snapshot that does not record it."""


@dataclass(frozen=True)
class NewerMetadata:
    """A state of a table that the catalog does not know."""

    location: str
    """URI of the metadata file."""
    promise: Promise
    """Of its current snapshot."""
    earlier: tuple[Promise, ...] = ()
    """Of its other snapshots, without those of the same frontier."""
    cut_line: str | None = None
    """The cut-line of its archive branch, a tier value; None in a table without heap retention."""

    @property
    def frontier(self) -> Lsn:
        return self.promise.frontier


@dataclass(frozen=True)
class UnknownMetadata:
    """The metadata files of a table that the catalog does not know."""

    newest: NewerMetadata | None = None
    """The one with the highest frontier of those that were looked for; None if there is none."""
    modified: float = 0.0
    """When the last of all of them was written, seconds since 1970 UTC by the storage's clock; 0 if there is none."""


def unknown_metadata(
    location: str, storage: StorageOptions, *, accepted: float, matches: Callable[[NewerMetadata], bool]
) -> UnknownMetadata:
    """Look for files that `location`, which the catalog names, does not continue.

    Their numbers say nothing: a compaction on a server that went back takes the numbers of lost publishes again. Leaves
    out files up to the time `accepted` (seconds since 1970 UTC), which `reconcile` has accepted, files without a
    frontier and files that cannot be read. Raises LakeError if the storage does not answer.
    """
    lineage = _lineage(location, storage)
    first = min((number for file in lineage if (number := _number(file)) is not None), default=None)
    if first is None:
        return UnknownMetadata()
    unknown = [
        (number, file)
        for file in list_files(location.rpartition("/")[0], storage)
        if (number := _number(_name(file))) is not None
        and number >= first
        and _name(file) not in lineage
        and file.modified > accepted
    ]
    states: list[NewerMetadata] = []
    for _, file in sorted(unknown, key=lambda numbered: (numbered[0], numbered[1].location), reverse=True):
        state = _read(file.location, storage)
        if state is not None and matches(state):
            states.append(state)
        if len(states) == _ENOUGH:
            break
    newest = max(states, key=lambda state: state.frontier, default=None)
    return UnknownMetadata(newest, max((file.modified for _, file in unknown), default=0.0))


def _lineage(location: str, storage: StorageOptions) -> frozenset[str]:
    """The names of the file and of its predecessors, as far as it records them."""
    try:
        earlier_locations = read_any_version(location, storage).former_locations
    except LakeError:
        # It is missing or damaged, which the pump reports itself.
        earlier_locations = []
    return frozenset(path.rpartition("/")[2] for path in (*earlier_locations, location))


def _name(file: StoredFile) -> str:
    return file.location.rpartition("/")[2]


def _number(name: str) -> int | None:
    matched = _NUMBERED.match(name)
    return None if matched is None else int(matched[1])


def _read(location: str, storage: StorageOptions) -> NewerMetadata | None:
    try:
        metadata = read_any_version(location, storage)
    except LakeError:
        # Half of a file, or removed by a sweep meanwhile.
        return None
    promise = _promise(metadata.current_snapshot)
    if promise is None:
        return None
    others = {past_promise for snapshot in metadata.snapshots if (past_promise := _promise(snapshot)) is not None}
    earlier = sorted(
        (other for other in others if other.frontier != promise.frontier), key=lambda other: other.frontier
    )
    archive = metadata.archive_snapshot
    return NewerMetadata(
        location, promise, tuple(earlier), None if archive is None else archive.summary.archive_cut_line
    )


def _promise(snapshot: Snapshot | None) -> Promise | None:
    if snapshot is None or snapshot.summary.position is None:
        return None
    return Promise(snapshot.summary.position, snapshot.summary.timeline)
