"""Reads manifest lists of any engine, and writes those of our own snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, PartitionFieldSummary

from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FORMAT_VERSION, FileContent
from mirror_pump.lake.metadata.avro import BytesInput, Encoder, OpenedFile, container, schema_json
from mirror_pump.lake.metadata.manifest_entries import ManifestEntry
from mirror_pump.lake.storage import StorageOptions, read_bytes


@dataclass(frozen=True)
class Manifest:
    """A manifest, as described by an entry of a manifest list."""

    path: str
    length: int
    spec_id: int
    content: int
    """0 for data, 1 for deletes."""
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    files: tuple[int, int, int]
    """Number of entries by status: added, existing, deleted."""
    rows: tuple[int, int, int]
    partitions: Any = None
    key_metadata: bytes | None = None
    entries: tuple[ManifestEntry, ...] | None = None
    """The entries, if few enough to be kept in memory."""
    deletes: FileContent | None = None
    """Kind of all live entries of a delete manifest, if known. The kinds are kept in separate manifests, since equality
    deletes are soon converted and removed, while position deletes stay."""
    line: bytes = b""
    """This manifest's entry of a manifest list, encoded."""

    @property
    def live_files(self) -> int:
        """Number of files that readers of the snapshot see."""
        return self.files[0] + self.files[1]

    def may_hold_data_of(self, number: int) -> bool:
        """Whether it can hold a data file of this data sequence number; no file is newer than its manifest."""
        return self.content == ManifestContent.DATA and self.min_sequence_number <= number <= self.sequence_number


def read_list(location: str, storage: StorageOptions) -> tuple[Manifest, ...]:
    """The manifests of a snapshot of any engine. Raises LakeError."""
    content = read_bytes(location, storage)
    file = OpenedFile[ManifestFile](
        BytesInput(content),
        MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    )
    with decoding(location, "a readable manifest list"), file as lines:
        return tuple(map(_from_list, lines))


def encoded_list(metadata: Mapping[str, str], manifests: Sequence[Manifest]) -> bytes:
    """The content of a manifest list file; `metadata` goes into its header."""
    return container(_list_schema(), metadata, [manifest.line for manifest in manifests])


def _from_list(line: ManifestFile) -> Manifest:
    # Format version 1 allows lists without counts. Nobody may pass over such a manifest, so it counts as one of a file.
    uncounted = line.added_files_count is None or line.existing_files_count is None
    return with_line(
        Manifest(
            line.manifest_path,
            line.manifest_length,
            line.partition_spec_id,
            int(line.content),
            line.sequence_number,
            line.min_sequence_number,
            line.added_snapshot_id or 0,
            (line.added_files_count or 0, line.existing_files_count or int(uncounted), line.deleted_files_count or 0),
            (line.added_rows_count or 0, line.existing_rows_count or 0, line.deleted_rows_count or 0),
            line.partitions,
            line.key_metadata,
        )
    )


def with_line(manifest: Manifest) -> Manifest:
    """The manifest with its encoded entry of a manifest list."""
    line = _list_encoder().encode(
        manifest.path,
        manifest.length,
        manifest.spec_id,
        manifest.content,
        manifest.sequence_number,
        manifest.min_sequence_number,
        manifest.added_snapshot_id,
        *manifest.files,
        *manifest.rows,
        # An unpartitioned spec has no field summaries, but readers require the list.
        manifest.partitions if manifest.partitions is not None else [],
        manifest.key_metadata,
    )
    return replace(manifest, line=line)


@lru_cache(maxsize=1)
def _list_schema() -> str:
    return schema_json(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION], "manifest_file")


@lru_cache(maxsize=1)
def _list_encoder() -> Encoder:
    return Encoder(MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION].as_struct())
