"""The next snapshot of a table: its manifests and manifest list, written, and the metadata that names it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.lake.catalogs.lake_catalog import MetadataPointer
from mirror_pump.lake.metadata.manifest_entries import ManifestEntry
from mirror_pump.lake.metadata.manifest_list import Manifest
from mirror_pump.lake.metadata.manifests import ManifestWriter, Removal
from mirror_pump.lake.metadata.metadata_files import metadata_directory
from mirror_pump.lake.metadata.next_metadata import with_snapshot
from mirror_pump.lake.metadata.snapshot import Snapshot
from mirror_pump.lake.metadata.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.metadata.snapshot_thinning import HistoryRetention
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.lake.table.described_files import DescribedFiles, current_schema
from mirror_pump.lake.table.table_errors import ConflictingCommit

_EVERY_SNAPSHOT = HistoryRetention(newest=sys.maxsize)
"""A commit expires no snapshot: that is for `expire`, which asks nobody else's age."""


@dataclass(frozen=True)
class TableVersion:
    """A table as of one metadata file."""

    pointer: MetadataPointer | None
    """None for a table that is being created."""
    metadata: TableMetadata
    manifests: tuple[Manifest, ...]
    """Those of the current snapshot."""


@dataclass(frozen=True)
class StagedSnapshot:
    """A snapshot whose files are durable. Nobody sees it until a catalog's pointer names its metadata."""

    metadata: TableMetadata
    manifests: tuple[Manifest, ...]
    files: tuple[str, ...]
    """URIs of the manifests and of the list."""


def stage_snapshot(
    state: TableVersion,
    added: DescribedFiles,
    removed: Collection[str],
    storage: StorageOptions,
    summary: Mapping[str, str],
) -> StagedSnapshot:
    """Writes the manifests of one snapshot on top of `state`. `removed`: URIs of live data files.

    Raises ConflictingCommit if a file to remove is not live, and LakeError if the storage fails: then no file is left.
    """
    metadata = added.metadata
    sequence_number = metadata.last_sequence_number + 1
    writer = ManifestWriter(
        metadata,
        metadata_directory(metadata),
        metadata.new_snapshot_id(),
        sequence_number,
        partition_types=_partition_types(metadata),
    )
    manifests = state.manifests
    if metadata.current_schema_id != state.metadata.current_schema_id:
        manifests = _forgotten(manifests)
    removal = _removal(writer, manifests, removed, storage)
    new = writer.add(ManifestContent.DATA, [(file, sequence_number) for file in added.files])
    carried = [*writer.merge(removal.untouched, storage), *removal.rewritten]
    manifests = (*([] if new is None else [new]), *carried)
    parent = metadata.current_snapshot
    snapshot = Snapshot.new(
        writer.snapshot_id,
        parent,
        sequence_number,
        # Never before its parent, whatever this machine's clock says.
        max(time.time_ns() // 1_000_000, metadata.last_updated_ms),
        summarise(FileCounts.of(added.files), removal.removed, None if parent is None else parent.summary, summary),
        writer.list(manifests, None if parent is None else parent.snapshot_id),
        metadata.current_schema_id,
    )
    write_all(writer.files, storage)
    old = None if state.pointer is None else state.pointer.metadata_location
    after = with_snapshot(metadata, snapshot, old, (), _EVERY_SNAPSHOT)
    return StagedSnapshot(after, manifests, tuple(location for location, _ in writer.files))


def _removal(
    writer: ManifestWriter, manifests: Sequence[Manifest], removed: Collection[str], storage: StorageOptions
) -> Removal:
    """Marks the files as deleted. Raises ConflictingCommit if one of them is not there."""
    if not removed:
        return Removal([manifest for manifest in manifests if manifest.live_files], [], FileCounts())
    left = set(removed)

    def doomed(entry: ManifestEntry) -> bool:
        found = entry.path in left
        left.discard(entry.path)
        return found

    result = writer.remove(manifests, storage, doomed, lambda manifest: manifest.content == ManifestContent.DATA)
    if left:
        raise ConflictingCommit(
            f"{len(left)} of the files to remove are not in the table, such as {min(left)}",
            "somebody else removed them: plan the overwrite again on the table as it is now",
            sorted(left),
        )
    return result


def _partition_types(metadata: TableMetadata) -> Callable[[int], StructType]:
    schema = current_schema(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    return cache(lambda spec_id: specs[spec_id].any_partition_type(schema))


def _forgotten(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """The manifests without entries in memory, which are encoded by the former columns' types."""
    return tuple(replace(manifest, entries=None) for manifest in manifests)
