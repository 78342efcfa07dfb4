"""Every file that a table's metadata names: in any snapshot of its history, in its log, and among its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.manifests.manifest_list import Manifest, listed_manifests
from mirror_pump.lake.storage import StorageOptions

Lister = Callable[[Snapshot, StorageOptions], Sequence[Manifest]]


def listed_by_snapshot(snapshot: Snapshot, storage: StorageOptions) -> Sequence[Manifest]:
    """The manifests of a snapshot that has a manifest list, as those of format version 2 do. Raises LakeError."""
    return listed_manifests(snapshot, storage)


def referenced_files(
    metadata: TableMetadata, storage: StorageOptions, manifests_of: Lister = listed_by_snapshot
) -> Iterator[str]:
    """The locations of the files, directly named or not; some of them more than once. Reads every manifest. Raises
    LakeError."""
    yield from metadata.former_locations
    yield from metadata.statistics_locations
    manifests: dict[str, Manifest] = {}
    for snapshot in metadata.snapshots:
        if snapshot.has_manifest_list:
            yield snapshot.manifest_list
        manifests |= {manifest.path: manifest for manifest in manifests_of(snapshot, storage)}
    yield from manifests
    for manifest in manifests.values():
        for files in Listing(storage).files([manifest]).values():
            yield from (file.path for file in files)
