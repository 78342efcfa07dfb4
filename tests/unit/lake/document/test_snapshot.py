"""Views of snapshots: what they return, what is missing, and that they copy nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mirror_pump.lake.document.next_metadata import with_archive_snapshot, with_branch, with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import (
    COPYING_PROPERTY,
    FRONTIER_PROPERTY,
    FileCounts,
    SnapshotSummary,
    Total,
    archive_summary,
    operation,
    summarise,
)
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH, TableMetadata

NOW = 1_760_000_000_000


def _metadata(*snapshots: dict[str, Any]) -> TableMetadata:
    return TableMetadata({"snapshots": list(snapshots), "current-snapshot-id": -1})


def test_snapshots_are_views_in_the_order_asked_for_and_share_the_documents_entries() -> None:
    metadata = _metadata(*({"snapshot-id": 10 - number, "sequence-number": number} for number in (2, 1, 3)))
    snapshots = metadata.snapshots
    assert len(snapshots) == 3
    assert [snapshot.sequence_number for snapshot in snapshots] == [2, 1, 3]
    assert [snapshot.sequence_number for snapshot in reversed(snapshots)] == [3, 1, 2]
    assert [snapshot.sequence_number for snapshot in snapshots.oldest_first()] == [1, 2, 3]
    assert [snapshot.snapshot_id for snapshot in snapshots.newest_first()] == [7, 8, 9]
    assert [snapshot.snapshot_id for snapshot in snapshots[1:]] == [9, 7]
    for snapshot, entry in zip(snapshots, metadata.document["snapshots"], strict=True):
        assert snapshot.document is entry


def test_what_other_engines_leave_out_is_none_or_empty() -> None:
    snapshot = Snapshot({"snapshot-id": 5, "timestamp-ms": NOW, "manifest-list": "file:///l"})
    assert (snapshot.parent_id, snapshot.schema_id, snapshot.sequence_number) == (None, None, 0)
    assert not snapshot.is_archive
    summary = snapshot.summary
    assert (summary.operation, summary.frontier, summary.archive_cut_line, summary.seam_metadata) == (None,) * 4
    assert {summary.total(name) for name in Total} == {None}
    assert not summary.copying
    metadata = TableMetadata({"format-version": 1, "current-snapshot-id": None})
    assert (metadata.current_snapshot, metadata.archive_snapshot, metadata.branch("main")) == (None, None, None)
    assert (len(metadata.snapshots), metadata.refs, metadata.properties, metadata.last_sequence_number) == (
        0,
        {},
        {},
        0,
    )


def test_a_new_snapshot_follows_its_parent() -> None:
    first = Snapshot.new(7, None, 1, NOW, {}, "file:///l", 0)
    second = Snapshot.new(8, first, 2, NOW + 1, {FRONTIER_PROPERTY: "0/10"}, "file:///m", 3)
    assert "parent-snapshot-id" not in first.document
    assert (second.parent_id, second.schema_id, second.manifest_list) == (7, 3, "file:///m")
    assert second.summary.frontier == 16
    assert second.without_schema_id().schema_id is None
    assert second.schema_id == 3


def test_a_total_that_the_parent_lacks_stays_unknown() -> None:
    added = FileCounts(data_files=2, records=5, size=9)
    parent = SnapshotSummary({Total.RECORDS.value: "10"})
    summary = SnapshotSummary(summarise(added, FileCounts(), parent, {COPYING_PROPERTY: "true"}))
    assert (summary.total(Total.RECORDS), summary.total(Total.DATA_FILES)) == (15, None)
    assert summary.operation == "append"
    assert summary.copying
    first = SnapshotSummary(summarise(added, FileCounts(), None, {}))
    assert (first.total(Total.DATA_FILES), first.total(Total.FILES_SIZE)) == (2, 9)


@pytest.mark.parametrize(
    ("added", "removed", "only_rewrites", "expected"),
    [
        (FileCounts(data_files=1), FileCounts(), False, "append"),
        (FileCounts(data_files=1), FileCounts(data_files=1), False, "overwrite"),
        (FileCounts(data_files=1), FileCounts(data_files=1), True, "replace"),
        (FileCounts(data_files=1, position_files=1), FileCounts(data_files=1), True, "overwrite"),
        (FileCounts(position_files=1), FileCounts(equality_files=1), True, "delete"),
    ],
)
def test_nothing_that_adds_a_delete_file_is_a_replace(
    added: FileCounts, removed: FileCounts, expected: str, *, only_rewrites: bool
) -> None:
    assert operation(added, removed, only_rewrites=only_rewrites) == expected


def test_an_archive_snapshot_is_the_head_of_its_branch_alone() -> None:
    start = Snapshot.new(1, None, 1, NOW, {}, "", 0)
    empty = TableMetadata(
        {"last-updated-ms": NOW, "snapshots": [], "current-snapshot-id": -1, "properties": {}, "metadata-log": []}
    )
    metadata = with_branch(with_snapshot(empty, start, None, (), DEFAULT_RETENTION), ARCHIVE_BRANCH, 1)
    assert metadata.archive_snapshot == metadata.current_snapshot == start
    assert metadata.seam_locations == frozenset()
    summary = archive_summary(FileCounts(), 42, "file:///seam/1", {})
    archive = Snapshot.new(2, metadata.archive_snapshot, 2, NOW + 1, summary, "", 0)
    metadata = with_archive_snapshot(metadata, archive, "file:///m", (), DEFAULT_RETENTION)
    assert (metadata.current_snapshot, metadata.archive_snapshot) == (start, archive)
    assert archive.is_archive
    assert not start.is_archive
    assert archive.summary.archive_cut_line == "42"
    assert metadata.seam_locations == {"file:///seam/1"}
    assert [snapshot.is_archive for snapshot in metadata.expiry_view().snapshots] == [False, True]
