"""A staged document on top of another engine's: rows and columns of the one, everything else of the other."""

from __future__ import annotations

from typing import Any

import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.rebase import rebased
from mirror_pump.lake.commit.schema_evolution import with_schema
from mirror_pump.lake.format.metadata import (
    COLD,
    DEFAULT_RETENTION,
    HistoryRetention,
    new_metadata,
    snapshot_of,
    with_branch,
    with_snapshot,
)
from mirror_pump.lake.format.schema import LakeField, LakeSchema

_ID = LakeField(1, "id", ColumnType(Kind.LONG), required=True)
_OLD = LakeSchema(0, (_ID, LakeField(2, "u", ColumnType(Kind.UUID), required=False)), (1,))
_NEW = LakeSchema(0, (_ID, LakeField(3, "v", ColumnType(Kind.UUID), required=False)), (1,))


def _commit(
    metadata: dict[str, Any], snapshot_id: int, retention: HistoryRetention = DEFAULT_RETENTION
) -> dict[str, Any]:
    """The document after a commit to `main`."""
    parent = metadata["current-snapshot-id"]
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"] + 3_600_000,
        "manifest-list": "",
        "summary": {},
        "schema-id": metadata["current-schema-id"],
        "parent-snapshot-id": parent,
    }
    return with_snapshot(metadata, snapshot, f"file:///t/{snapshot_id}", (), retention)


def _tagged(metadata: dict[str, Any], name: str, snapshot_id: int) -> dict[str, Any]:
    return {**metadata, "refs": {**metadata["refs"], name: {"type": "tag", "snapshot-id": snapshot_id}}}


def _committed_to_a_branch(metadata: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    """As other engines leave it: `main` is where it was."""
    head = metadata["refs"].get("work", metadata["refs"]["main"])["snapshot-id"]
    grown = _commit({**metadata, "current-snapshot-id": head}, snapshot_id)
    kept = ("current-snapshot-id", "snapshot-log", "refs")
    return with_branch({**grown, **{key: metadata[key] for key in kept}}, "work", snapshot_id)


def _ids(metadata: dict[str, Any]) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]


@pytest.fixture
def base() -> dict[str, Any]:
    """Where the copy begins: snapshots 1 to 3."""
    metadata = new_metadata(_OLD, "file:///t", {"steward": "somebody", "gone": "soon"}, 1_760_000_000_000)
    for snapshot_id in (1, 2, 3):
        metadata = _commit(metadata, snapshot_id)
    return with_branch(metadata, COLD, 2)


def _copied(base: dict[str, Any], retention: HistoryRetention = DEFAULT_RETENTION) -> dict[str, Any]:
    """The staged document: other columns, snapshots 11 and 12."""
    return _commit(_commit(with_schema(base, _NEW, replaced=True), 11, retention), 12, retention)


def test_without_other_commits_nothing_changes(base: dict[str, Any]) -> None:
    staged = _copied(base)
    assert rebased(staged, base) == staged
    thinned = _copied(base, HistoryRetention(1, 0, 0))
    assert _ids(thinned) == [2, 12]
    assert rebased(thinned, base) == thinned, "history that the copy's commits let go stays away"


def test_rows_and_columns_are_the_copys_and_all_else_is_as_others_left_it(base: dict[str, Any]) -> None:
    staged = _copied(base, HistoryRetention(1, 0, 0))
    present = _committed_to_a_branch(_committed_to_a_branch(base, 21), 22)
    present = _tagged(_commit(_tagged(present, "audit", 3), 31), "rewritten", 31)
    present["refs"]["main"]["max-ref-age-ms"] = 5
    present |= {
        "properties": {**present["properties"], "steward": "somebody else", "new": "one"},
        "default-sort-order-id": 1,
        "statistics": [{"snapshot-id": 3}, {"snapshot-id": 1}],
        "unknown": {"kept": True},
    }
    del present["properties"]["gone"]
    result = rebased(staged, present)
    for key in ("current-snapshot-id", "current-schema-id", "schemas", "snapshot-log"):
        assert result[key] == staged[key]
    assert result["refs"] == {**present["refs"], "main": {"type": "branch", "snapshot-id": 12, "max-ref-age-ms": 5}}
    assert set(_ids(result)) == {2, 3, 12, 21, 22, 31}, "1 is nobody's, and 11 was let go"
    assert all(snapshot_of(result, ref["snapshot-id"]) for ref in result["refs"].values())
    numbers = [snapshot["sequence-number"] for snapshot in result["snapshots"]]
    assert numbers == sorted(numbers)
    assert result["last-sequence-number"] == max(numbers)
    assert {key: value for key, value in result["properties"].items() if "column" not in key} == {
        "steward": "somebody else",
        "new": "one",
    }
    assert {key.rpartition(".")[2] for key in result["properties"] if "column" in key} == {"v"}
    assert (result["default-sort-order-id"], result["unknown"]) == (1, {"kept": True})
    assert result["statistics"] == [{"snapshot-id": 3}]


def test_a_snapshot_is_not_read_by_a_schema_that_it_was_not_made_under(base: dict[str, Any]) -> None:
    """Another engine gave the table a column, and the ID of the copy's schema to its own."""
    staged = _copied(base)
    foreign = LakeSchema(0, (*_OLD.fields, LakeField(9, "theirs", ColumnType(Kind.LONG), required=False)), (1,))
    present = _committed_to_a_branch(with_schema(base, foreign, replaced=False), 21)
    assert present["current-schema-id"] == staged["current-schema-id"]
    brought = snapshot_of(rebased(staged, present), 21)
    assert brought is not None
    assert "schema-id" not in brought
