"""The next snapshot of a table: its manifests and manifest list, written, and the metadata that names it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pyiceberg.manifest import ManifestContent
from pyiceberg.types import StructType

from mirror_pump.lake.commit.new_snapshot import AddedFiles, MadeSnapshot, NewSnapshot
from mirror_pump.lake.deletes.row_deletes import NO_DELETES, RowDeletes
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts
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


def stage_snapshot(
    state: TableVersion,
    added: DescribedFiles,
    removed: Collection[str],
    storage: StorageOptions,
    summary: Mapping[str, str],
    deletes: RowDeletes = NO_DELETES,
) -> MadeSnapshot:
    """Writes the manifests of one snapshot on top of `state`, which no reader sees until a catalog's pointer names its
    metadata. `removed`: URIs of live data files; `deletes`: what the snapshot changes in those of rows.

    Raises ConflictingCommit if a file to remove is not live, and LakeError if the storage fails: then no file is left.
    """
    writer = ManifestWriter(added.metadata, partition_types=_partition_types(added.metadata))
    gone = {*removed, *deletes.emptied}
    now_ms = time.time_ns() // 1_000_000
    made = _TableSnapshot(writer, storage, now_ms, summary, state, added.files, gone, deletes).make()
    write_all(made.files, storage)
    return made


@dataclass
class _TableSnapshot(NewSnapshot):
    state: TableVersion
    new_files: Sequence[WrittenFile]
    gone: Collection[str]
    deletes: RowDeletes

    def added(self) -> AddedFiles:
        number = self.writer.sequence_number
        vectors: Sequence[WrittenFile] = ()
        if self.deletes.vectors:
            vectors, puffin = encoded_deletion_vectors(self.deletes.vectors, self.metadata.location)
            self.files.append(puffin)
        return AddedFiles(
            data=[(file, number) for file in self.new_files], positions=[(file, number) for file in vectors]
        )

    def removed(self) -> Removal:
        """Raises ConflictingCommit if one of the files to remove is not there."""
        manifests = self.state.manifests
        if self.metadata.current_schema_id != self.state.metadata.current_schema_id:
            manifests = _forgotten(manifests)
        superseded = self.deletes.superseded
        if not self.gone and not superseded:
            return Removal([manifest for manifest in manifests if manifest.live_files], [], FileCounts())
        left = {same_name(path): path for path in self.gone}

        def is_removed(entry: ManifestEntry) -> bool:
            if entry.content != FileContent.DATA:
                return self.deletes.supersede(entry)
            return left.pop(same_name(entry.path), None) is not None

        contents = set()
        if self.gone:
            contents.add(ManifestContent.DATA)
        if superseded:
            contents.add(ManifestContent.DELETES)
        removal = self.writer.remove(manifests, self.storage, is_removed, lambda manifest: manifest.content in contents)
        if left:
            raise ConflictingCommit(
                f"{len(left)} of the files to remove are not in the table, such as {min(left.values())}",
                "another writer removed them: plan the overwrite again on the table as it is now",
                sorted(left.values()),
            )
        return removal

    def named(self, snapshot: Snapshot) -> TableMetadata:
        pointer = self.state.pointer
        old_location = None if pointer is None else pointer.metadata_location
        return with_snapshot(self.metadata, snapshot, old_location, (), _EVERY_SNAPSHOT)


def _partition_types(metadata: TableMetadata) -> Callable[[int], StructType]:
    schema = current_schema(metadata)
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    return cache(lambda spec_id: specs[spec_id].any_partition_type(schema))


def _forgotten(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """The manifests without entries in memory, which are encoded by the former columns' types."""
    return tuple(replace(manifest, entries=None, first_entries=()) for manifest in manifests)
