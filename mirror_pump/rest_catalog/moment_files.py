"""Metadata files in which a snapshot of the past is the current one.

Engines take a table's state from the metadata that a catalog answers, but for ClickHouse, which opens the file that
`metadata-location` names. So each state that is shown has a file. It is written once for each snapshot, beside those of
archive snapshots, under a name that follows from the snapshot; whoever writes it again writes the same state. The sweep
leaves it as long as its snapshot is pinned, and deletes it as any file that nothing refers to once that is over.
"""

from __future__ import annotations

import uuid

from mirror_pump.lake.metadata.metadata_files import seam_directory
from mirror_pump.lake.metadata.next_metadata import moment_metadata
from mirror_pump.lake.metadata.snapshot import Snapshot
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, exists, join, write_bytes


def moment_file(metadata: TableMetadata, snapshot: Snapshot, storage: StorageOptions) -> str:
    """The URI of the file in which `snapshot`, one of the table's, is the current and only one. It is written if it is
    not there. The caller has pinned the snapshot. Raises LakeError."""
    location = moment_location(metadata, snapshot)
    if not exists(location, storage):
        write_bytes(location, moment_metadata(metadata, snapshot).to_json(), storage)
    return location


def moment_location(metadata: TableMetadata, snapshot: Snapshot) -> str:
    """Where that file is. ClickHouse opens files only that are named as Iceberg's own: N-uuid.metadata.json."""
    name = uuid.uuid5(uuid.UUID(metadata.table_uuid), str(snapshot.snapshot_id))
    return join(seam_directory(metadata), f"{snapshot.sequence_number:05d}-{name}.metadata.json")
