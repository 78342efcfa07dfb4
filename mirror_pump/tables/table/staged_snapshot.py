"""The next snapshot of a table: its manifests and manifest list, written, and the metadata that names it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.lake.deletes.row_deletes import NO_DELETES, RowDeletes
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.snapshot_thinning import HistoryRetention
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import encoded_deletion_vectors
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer
from mirror_pump.tables.table.described_files import DescribedFiles, current_schema
from mirror_pump.tables.table.file_names import same_name
from mirror_pump.tables.table.table_errors import ConflictingCommit

_EVERY_SNAPSHOT = HistoryRetention(newest=sys.maxsize)
"""A commit expires no snapshot: that is for `expire` alone."""


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
    """A snapshot whose files are durable. No reader sees it until a catalog's pointer names its metadata."""

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
    deletes: RowDeletes = NO_DELETES,
) -> StagedSnapshot:
    """Writes the manifests of one snapshot on top of `state`. `removed`: URIs of live data files; `deletes`: what the
    snapshot changes in those of rows.

    Raises ConflictingCommit if a file to remove is not live, and LakeError if the storage fails: then no file is left.
    """
    metadata = added.metadata
    vectors: tuple[WrittenFile, ...] = ()
    files: list[tuple[str, bytes]] = []
    if deletes.vectors:
        vectors, puffin = encoded_deletion_vectors(deletes.vectors, metadata.location)
        files.append(puffin)
    writer = ManifestWriter(metadata, partition_types=_partition_types(metadata))
    manifests = state.manifests
    if metadata.current_schema_id != state.metadata.current_schema_id:
        manifests = _forgotten(manifests)
    removal = _removal(writer, manifests, {*removed, *deletes.emptied}, deletes, storage)
    new = {
        ManifestContent.DATA: [(file, writer.sequence_number) for file in added.files],
        ManifestContent.DELETES: [(file, writer.sequence_number) for file in vectors],
    }
    manifests = (*writer.next(removal.untouched, new, storage), *removal.rewritten)
    parent = metadata.current_snapshot
    # Never before its parent, whatever this machine's clock says.
    timestamp = max(time.time_ns() // 1_000_000, metadata.last_updated_ms)
    new_counts = FileCounts.of((*added.files, *vectors))
    counts = summarise(new_counts, removal.removed, None if parent is None else parent.summary, summary)
    snapshot, manifests = writer.snapshot(parent, manifests, counts, timestamp)
    files += writer.files
    write_all(files, storage)
    old = None if state.pointer is None else state.pointer.metadata_location
    after = with_snapshot(metadata, snapshot, old, (), _EVERY_SNAPSHOT)
    return StagedSnapshot(after, manifests, tuple(location for location, _ in files))


def _removal(
    writer: ManifestWriter,
    manifests: Sequence[Manifest],
    removed: Collection[str],
    deletes: RowDeletes,
    storage: StorageOptions,
) -> Removal:
    """Marks the files, and deletes that are superseded, as deleted. Raises ConflictingCommit if one of the files is not
    there."""
    if not removed and not deletes.superseded:
        return Removal([manifest for manifest in manifests if manifest.live_files], [], FileCounts())
    left = {same_name(path): path for path in removed}

    def doomed(entry: ManifestEntry) -> bool:
        if entry.content != FileContent.DATA:
            return deletes.supersede(entry)
        return left.pop(same_name(entry.path), None) is not None

    contents = set()
    if removed:
        contents.add(ManifestContent.DATA)
    if deletes.superseded:
        contents.add(ManifestContent.DELETES)
    result = writer.remove(manifests, storage, doomed, lambda manifest: manifest.content in contents)
    if left:
        raise ConflictingCommit(
            f"{len(left)} of the files to remove are not in the table, such as {min(left.values())}",
            "somebody else removed them: plan the overwrite again on the table as it is now",
            sorted(left.values()),
        )
    return result


def _partition_types(metadata: TableMetadata) -> Callable[[int], StructType]:
    schema = current_schema(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    return cache(lambda spec_id: specs[spec_id].any_partition_type(schema))


def _forgotten(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """The manifests without entries in memory, which are encoded by the former columns' types."""
    return tuple(replace(manifest, entries=None, first_entries=()) for manifest in manifests)
