"""Manifest lists: the manifests of a snapshot, read whoever wrote them, and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, PartitionFieldSummary

from mirror_pump.lake.format.avro import BytesInput, Encoder, OpenedFile, container, schema_json
from mirror_pump.lake.format.data_files import FORMAT_VERSION, FileContent
from mirror_pump.lake.format.manifest_entries import ManifestEntry
from mirror_pump.lake.storage import StorageOptions, read_bytes


@dataclass(frozen=True)
class Manifest:
    """A line of a manifest list."""

    path: str
    length: int
    spec_id: int
    content: int
    """0 data, 1 deletes."""
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    files: tuple[int, int, int]
    """Entries by status: added, existing, deleted."""
    rows: tuple[int, int, int]
    partitions: Any = None
    key_metadata: bytes | None = None
    entries: tuple[ManifestEntry, ...] | None = None
    """The entries, while it is cheap to hold them."""
    deletes: FileContent | None = None
    """The kind of all live entries of a delete manifest, where it is known. The two kinds are kept apart: resolves
    remove equality deletes soon, position deletes stay."""
    line: bytes = b""
    """This manifest, encoded for a manifest list."""

    @property
    def live_files(self) -> int:
        """Files that a reader of the snapshot sees."""
        return self.files[0] + self.files[1]

    def may_hold_data_of(self, number: int) -> bool:
        """Whether a data file of this data sequence number can be in it; none is younger than its manifest."""
        return self.content == ManifestContent.DATA and self.min_sequence_number <= number <= self.sequence_number


def read_list(location: str, storage: StorageOptions) -> tuple[Manifest, ...]:
    """The manifests of a snapshot, whoever wrote it. Raises LakeError."""
    file = OpenedFile[ManifestFile](
        BytesInput(read_bytes(location, storage)),
        MANIFEST_LIST_FILE_SCHEMAS[FORMAT_VERSION],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    )
    with file as lines:
        return tuple(map(_from_list, lines))


def encoded_list(metadata: Mapping[str, str], manifests: Sequence[Manifest]) -> bytes:
    """A manifest list file; `metadata` goes into its header."""
    return container(_list_schema(), metadata, [one.line for one in manifests])


def _from_list(line: ManifestFile) -> Manifest:
    return with_line(
        Manifest(
            line.manifest_path,
            line.manifest_length,
            line.partition_spec_id,
            int(line.content),
            line.sequence_number,
            line.min_sequence_number,
            line.added_snapshot_id or 0,
            (line.added_files_count or 0, line.existing_files_count or 0, line.deleted_files_count or 0),
            (line.added_rows_count or 0, line.existing_rows_count or 0, line.deleted_rows_count or 0),
            line.partitions,
            line.key_metadata,
        )
    )


def with_line(manifest: Manifest) -> Manifest:
    """The manifest with its own line of a manifest list."""
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
        # An unpartitioned spec has no field summaries; readers want the list all the same.
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
