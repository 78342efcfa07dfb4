"""The state of a lake table that the mirror builds on, and whether what other engines committed since kept its rows.

The mirror records the head with every commit of its own. Any other pointer is another engine's commit. It is a rewrite,
which holds the same rows, if main descends from the head by snapshots with the operation `replace` alone, and the row
counts of the manifests are those that a rewrite can have. Everything else is a change of rows: an append, a delete, an
overwrite, and also a main that was moved back to a snapshot of the mirror itself.

A change of rows is undone by making the head's snapshot the current one again. That is right, and needs no copy: the
mirror swaps the pointer only from its head, so nothing of its own is built on the change, and the head's snapshot holds
exactly the rows that readers were promised. A copy could not bring back rows that have left the heap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.snapshot_history import only_rewritten_since
from mirror_pump.lake.document.metadata_files import write_metadata
from mirror_pump.lake.document.next_metadata import with_main, with_tags
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.document.table_metadata import MAIN, TableMetadata
from mirror_pump.lake.format.versions import FORMAT_VERSION
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.model import SnapshotId

_NAMED = 3
"""Snapshots of another engine that a message names."""


@dataclass(frozen=True)
class TableHead:
    """The value of modak.mirror_tables.lake_head."""

    location: str
    """The metadata file that the catalog named."""
    snapshot_id: SnapshotId
    """The current snapshot of that file."""
    records: int
    """Rows of its data files, also those that deletes hide."""
    deletes: int
    """Rows of its delete files."""
    deletes_by_key: bool
    """Whether it has equality deletes, each of which may hide any number of rows."""
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, table: LakeTable) -> TableHead:
        """That of a table with a snapshot. The rows are those that manifests say, whatever the summary does."""
        rows = dict.fromkeys(ManifestContent, 0)
        for manifest in table.manifests:
            added, existing, _ = manifest.rows
            rows[ManifestContent(manifest.content)] += added + existing
        by_key = table.summary.total(Total.EQUALITY_DELETES)
        return cls(
            table.metadata_location,
            table.snapshot_id,
            rows[ManifestContent.DATA],
            rows[ManifestContent.DELETES],
            bool(rows[ManifestContent.DELETES]) and by_key != 0,
            table.metadata.format_version,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableHead:
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def may_be_rewritten_as(self, rewritten: TableHead) -> bool:
        """Whether a rewrite that keeps all rows can lead to these counts: it leaves out rows that deletes hid, and
        deletes that hide nothing any more."""
        left_out = self.records - rewritten.records
        most = self.records if self.deletes_by_key else self.deletes
        return 0 <= left_out <= most and rewritten.deletes <= self.deletes


def changed_rows(head: TableHead, table: LakeTable, pinned: Collection[int]) -> str | None:
    """Returns what other engines did to the rows since the head. None if `table` holds the same rows.

    Snapshots off main that another engine put there and took back count too, unless they are `pinned` or belong to a
    branch or tag: readers that look for the newest snapshot of the history would take them.
    """
    metadata = table.metadata
    if metadata.current_snapshot_id is None:
        return "took all snapshots out of main"
    if not only_rewritten_since(metadata, head.snapshot_id):
        return _described(metadata, head)
    if not head.may_be_rewritten_as(TableHead.of(table)):
        return f"rewrote files into others with other rows (snapshot {metadata.current_snapshot_id})"
    strays = [
        snapshot
        for snapshot in _strays(metadata, head, metadata.current_snapshot_id, pinned)
        if not snapshot.summary.only_rewrites
    ]
    return f"committed {_named(strays)} and took that back" if strays else None


def restored(head: TableHead, table: LakeTable, now_ms: int, pinned: Collection[int]) -> LakeTable:
    """Writes a metadata file in which the head's snapshot is the current one again. What other engines did to branches,
    tags and properties stays; their snapshots on main go. `now_ms` is milliseconds since 1970 UTC.

    Raises ForeignTable if the snapshot is gone, and LakeError.
    """
    metadata, snapshot = table.metadata, table.metadata.snapshot(head.snapshot_id)
    if snapshot is None:
        raise ForeignTable(
            f"another engine replaced the lake table, or removed snapshot {head.snapshot_id}, which the mirror had"
            " made, from its history",
            "unregister and register the table: it is copied again. Let other engines connect with a reader's role",
        )
    away = {stray.snapshot_id for stray in _strays(metadata, head, head.snapshot_id, pinned)}
    after = with_main(metadata, snapshot, away, table.metadata_location, max(now_ms, metadata.last_updated_ms))
    location = write_metadata(after, table.metadata_location, table.storage)
    manifests = read_list(snapshot, table.storage)
    return replace(table, metadata=after, metadata_location=location, manifests=manifests)


def tagged(table: LakeTable, tags: Mapping[str, int], now_ms: int) -> LakeTable:
    """Writes a metadata file in which these tags name these snapshots. `now_ms` is milliseconds since 1970 UTC. Raises
    LakeError."""
    metadata = with_tags(table.metadata, tags, table.metadata_location, now_ms)
    location = write_metadata(metadata, table.metadata_location, table.storage)
    return replace(table, metadata=metadata, metadata_location=location)


def _strays(metadata: TableMetadata, head: TableHead, main: int, pinned: Collection[int]) -> list[Snapshot]:
    """The snapshots younger than the head's that belong to no branch or tag, if `main` is the head of main. Empty if
    the history has lost the head's snapshot."""
    oldest = metadata.snapshot(head.snapshot_id)
    if oldest is None:
        return []
    reachable = set(pinned)
    for snapshot_id in (main, *(ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN)):
        snapshot = metadata.snapshot(snapshot_id)
        while snapshot is not None and snapshot.snapshot_id not in reachable:
            reachable.add(snapshot.snapshot_id)
            snapshot = None if snapshot.parent_id is None else metadata.snapshot(snapshot.parent_id)
    return [
        snapshot
        for snapshot in metadata.snapshots.oldest_first()
        if snapshot.sequence_number > oldest.sequence_number
        and not snapshot.is_archive
        and snapshot.snapshot_id not in reachable
    ]


def _described(metadata: TableMetadata, head: TableHead) -> str:
    """What another engine did to main, which does not descend from the head by rewrites."""
    main = []
    snapshot = metadata.current_snapshot
    while snapshot is not None and snapshot.snapshot_id != head.snapshot_id:
        main.append(snapshot)
        snapshot = None if snapshot.parent_id is None else metadata.snapshot(snapshot.parent_id)
    if snapshot is None:
        return f"moved main from snapshot {head.snapshot_id} to {metadata.current_snapshot_id}"
    return f"committed {_named(main)}"


def _named(snapshots: list[Snapshot]) -> str:
    named = [f"{snapshot.summary.operation} (snapshot {snapshot.snapshot_id})" for snapshot in snapshots[:_NAMED]]
    return ", ".join(named) + (f" and {len(snapshots) - _NAMED} more" if len(snapshots) > _NAMED else "")
