"""Applies a table's staged content on top of what other engines did to the table since the staging began.

A table that is copied again is built up in metadata that only the mirror sees. All other programs continue with the
metadata that the catalog names. Only the mirror may change rows and columns, but other engines may change tags,
branches, properties, sort orders and statistics. So the result takes rows and columns from the staged document and the
rest from the current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import write_metadata
from mirror_pump.lake.document.next_metadata import with_content_of, with_log_after
from mirror_pump.lake.document.snapshot import Snapshot, SnapshotRef
from mirror_pump.lake.document.table_metadata import MAIN, TableMetadata
from mirror_pump.model import SnapshotId


def rebase(staged: LakeTable, current: TableMetadata) -> LakeTable:
    """The staged table on top of `current`, the metadata that readers see.

    Returns `staged` itself if no other engine changed anything, otherwise a table with a new metadata file. Raises
    LakeError if the storage fails.
    """
    combined = rebased(staged.metadata, current)
    if combined == staged.metadata:
        return staged
    metadata = with_log_after(combined, staged.metadata, staged.metadata_location)
    location = write_metadata(metadata, staged.metadata_location, staged.storage)
    return replace(staged, metadata=metadata, metadata_location=location)


def rebased(staged: TableMetadata, current: TableMetadata) -> TableMetadata:
    """The combined document, equal to `staged` if no other engine changed anything.

    It does not include what others committed to `main`, since the copy has the table's rows. It includes what they
    committed to their own branches.
    """
    staged_ids = {snapshot.snapshot_id for snapshot in staged.snapshots}
    brought: dict[SnapshotId, Snapshot] = {}
    for name, ref in current.refs.items():
        if name != MAIN:
            brought |= {
                snapshot.snapshot_id: _readable(snapshot, current, staged)
                for snapshot in _unknown(current, ref, staged_ids)
            }
    return with_content_of(current, staged, brought.values())


def _unknown(current: TableMetadata, ref: SnapshotRef, staged_ids: set[SnapshotId]) -> Iterator[Snapshot]:
    """The snapshots that a tag or branch needs beyond those of the staged document."""
    snapshot = current.snapshot(ref.snapshot_id)
    while snapshot is not None and snapshot.snapshot_id not in staged_ids:
        yield snapshot
        parent = snapshot.parent_id if ref.is_branch else None
        snapshot = None if parent is None else current.snapshot(parent)


def _readable(snapshot: Snapshot, current: TableMetadata, staged: TableMetadata) -> Snapshot:
    """The snapshot, without its schema ID unless the staged document has the same schema under this ID: another engine
    may have made one. Readers then use the current schema."""
    if current.shares_schema(snapshot.schema_id, staged):
        return snapshot
    return snapshot.without_schema_id()
