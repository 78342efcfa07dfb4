"""What a snapshot consists of, in Iceberg's terms: a manifest list names manifests, and these name data files."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.lake.contents.file_listing import live_data_files
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.metadata.table_view import manifests_of


@dataclass(frozen=True, slots=True)
class ManifestList:
    """The manifests of one snapshot, those of deletes among them. It is a file that never changes."""

    location: str | None
    """Its URI, `Snapshot.manifest_list`. None for a snapshot of format version 1 that names its manifests itself."""
    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that readers of a snapshot see, as its manifest describes it. Rows of it may be deleted."""

    path: str
    """URI."""
    format: str
    """`PARQUET`, `AVRO` or `ORC`."""
    partition: PartitionTuple
    """One value for each field of the partition spec that its manifest has: times since 1970 as integers, decimals and
    UUIDs as Python's types."""
    records: int
    """Rows in the file, deleted ones included."""
    size_bytes: int
    sequence_number: int
    """Its data sequence number."""


def read_manifest_list(snapshot: Snapshot, storage: StorageOptions) -> ManifestList:
    """The manifest list of a snapshot of any engine. Raises LakeError."""
    location = snapshot.manifest_list if snapshot.has_manifest_list else None
    return ManifestList(location, tuple(manifests_of(snapshot, storage)))


def data_files_of(manifest: Manifest, storage: StorageOptions) -> tuple[DataFile, ...]:
    """The live data files of a manifest of any engine; none of one of deletes. Raises LakeError."""
    return tuple(
        DataFile(file.path, file.format, file.partition, file.records, file.size_bytes, file.sequence_number)
        for file in live_data_files([manifest], storage)
    )
