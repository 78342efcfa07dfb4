"""A staged document on top of another engine's: rows and columns of the former, everything else of the latter."""

from __future__ import annotations

from typing import Any

import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.rebase import rebased
from mirror_pump.lake.commit.schema_evolution import evolved
from mirror_pump.lake.document.next_metadata import with_branch, with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION, HistoryRetention
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH, TableMetadata
from mirror_pump.lake.format.schema import LakeField, LakeSchema

_ID = LakeField(1, "id", ColumnType(Kind.LONG), required=True)
_OLD = LakeSchema(0, (_ID, LakeField(2, "u", ColumnType(Kind.UUID), required=False)), (1,))
_NEW = LakeSchema(0, (_ID, LakeField(3, "v", ColumnType(Kind.UUID), required=False)), (1,))


def _commit(
    metadata: TableMetadata, snapshot_id: int, retention: HistoryRetention = DEFAULT_RETENTION
) -> TableMetadata:
    """The document after a commit to `main`."""
    number, at_ms = metadata.last_sequence_number + 1, metadata.last_updated_ms + 3_600_000
    snapshot = Snapshot.new(snapshot_id, metadata.current_snapshot, number, at_ms, {}, "", metadata.current_schema_id)
    return with_snapshot(metadata, snapshot, f"file:///t/{snapshot_id}", (), retention)


def _changed(metadata: TableMetadata, **changes: Any) -> TableMetadata:
    """The document as another engine may leave it; `_` in the names stands for `-`."""
    return TableMetadata({**metadata.document, **{name.replace("_", "-"): value for name, value in changes.items()}})


def _tagged(metadata: TableMetadata, name: str, snapshot_id: int) -> TableMetadata:
    return _changed(metadata, refs={**metadata.document["refs"], name: {"type": "tag", "snapshot-id": snapshot_id}})


def _committed_to_a_branch(metadata: TableMetadata, snapshot_id: int) -> TableMetadata:
    """The document after another engine's commit to a branch: `main` has not changed."""
    head = metadata.branch("work") or metadata.branch("main")
    assert head is not None
    grown = _commit(_changed(metadata, current_snapshot_id=head.snapshot_id), snapshot_id)
    kept = {key: metadata.document[key] for key in ("current-snapshot-id", "snapshot-log", "refs")}
    return with_branch(TableMetadata({**grown.document, **kept}), "work", snapshot_id)


def _ids(metadata: TableMetadata) -> list[int]:
    return [snapshot.snapshot_id for snapshot in metadata.snapshots]


@pytest.fixture
def base() -> TableMetadata:
    """The state at which the copy begins: snapshots 1 to 3."""
    metadata = TableMetadata.new(_OLD, "file:///t", {"steward": "somebody", "gone": "soon"}, 1_760_000_000_000)
    for snapshot_id in (1, 2, 3):
        metadata = _commit(metadata, snapshot_id)
    return with_branch(metadata, ARCHIVE_BRANCH, 2)


def _copied(base: TableMetadata, retention: HistoryRetention = DEFAULT_RETENTION) -> TableMetadata:
    """The staged document: other columns, snapshots 11 and 12."""
    return _commit(_commit(evolved(base, _NEW, replaced=True), 11, retention), 12, retention)


def test_without_other_commits_nothing_changes(base: TableMetadata) -> None:
    staged = _copied(base)
    assert rebased(staged, base) == staged
    thinned = _copied(base, HistoryRetention(1, 0, 0))
    assert _ids(thinned) == [2, 12]
    assert rebased(thinned, base) == thinned, "history that the copy's commits let go stays away"


def test_rows_and_columns_are_the_copys_and_all_else_is_as_others_left_it(base: TableMetadata) -> None:
    staged = _copied(base, HistoryRetention(1, 0, 0))
    present = _committed_to_a_branch(_committed_to_a_branch(base, 21), 22)
    present = _tagged(_commit(_tagged(present, "audit", 3), 31), "rewritten", 31)
    refs = dict(present.document["refs"])
    present = _changed(
        present,
        refs={**refs, "main": {**refs["main"], "max-ref-age-ms": 5}},
        properties={
            **{key: value for key, value in present.properties.items() if key != "gone"},
            "steward": "somebody else",
            "new": "one",
        },
        default_sort_order_id=1,
        statistics=[{"snapshot-id": 3}, {"snapshot-id": 1}],
        unknown={"kept": True},
    )
    metadata = rebased(staged, present)
    result = metadata.document
    for key in ("current-snapshot-id", "current-schema-id", "schemas", "snapshot-log"):
        assert result[key] == staged.document[key]
    assert result["refs"] == {
        **present.document["refs"],
        "main": {"type": "branch", "snapshot-id": 12, "max-ref-age-ms": 5},
    }
    assert set(_ids(metadata)) == {2, 3, 12, 21, 22, 31}, "1 is nobody's, and 11 was let go"
    assert all(metadata.snapshot(ref.snapshot_id) for ref in metadata.refs.values())
    numbers = [snapshot.sequence_number for snapshot in metadata.snapshots]
    assert numbers == sorted(numbers)
    assert metadata.last_sequence_number == max(numbers)
    assert {key: value for key, value in metadata.properties.items() if "column" not in key} == {
        "steward": "somebody else",
        "new": "one",
    }
    assert {key.rpartition(".")[2] for key in metadata.properties if "column" in key} == {"v"}
    assert (result["default-sort-order-id"], result["unknown"]) == (1, {"kept": True})
    assert result["statistics"] == [{"snapshot-id": 3}]


def test_a_snapshot_is_not_read_by_a_schema_that_it_was_not_made_under(base: TableMetadata) -> None:
    """Another engine added a column to the table, and its schema has the ID of the copy's schema."""
    staged = _copied(base)
    foreign = LakeSchema(0, (*_OLD.fields, LakeField(9, "theirs", ColumnType(Kind.LONG), required=False)), (1,))
    present = _committed_to_a_branch(evolved(base, foreign, replaced=False), 21)
    assert present.current_schema_id == staged.current_schema_id
    brought = rebased(staged, present).snapshot(21)
    assert brought is not None
    assert brought.schema_id is None
