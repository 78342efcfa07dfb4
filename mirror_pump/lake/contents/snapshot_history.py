"""Questions about a table's snapshots: which may expire, and whether two hold the same rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mirror_pump.lake.format.metadata import is_archive_snapshot, snapshot_of
from mirror_pump.lake.format.snapshot_summary import REPLACE


def referenced(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Snapshots that branches and tags name, and the current one."""
    named = {int(ref["snapshot-id"]) for ref in metadata.get("refs", {}).values()}
    return frozenset(named | {int(metadata.get("current-snapshot-id") or -1)})


def expirable(
    metadata: Mapping[str, Any], now_ms: int, retention_ms: int, newest: int, protected: Collection[int]
) -> tuple[int, ...]:
    """Snapshots that nobody may ask for any more, oldest first.

    A snapshot's time runs from when the next one replaced it, so the table as of any moment within the retention
    stays readable, also when it had not changed for long by then. The `newest` ones, `protected` ones and those that a
    branch or tag names stay in any case. Order is by sequence number: snapshot IDs are random. Those of the branch
    `cold` replace each other, and have no part in the table's time; commits thin them out
    (mirror_pump.lake.format.metadata).
    """
    ordered = sorted(
        (one for one in metadata["snapshots"] if not is_archive_snapshot(one)),
        key=lambda one: one.get("sequence-number", 0),
    )
    held = referenced(metadata) | set(protected)
    candidates = ordered[: max(len(ordered) - max(newest, 1), 0)]
    return tuple(
        int(one["snapshot-id"])
        for one, successor in zip(candidates, ordered[1:], strict=False)
        if one["snapshot-id"] not in held and now_ms - int(successor["timestamp-ms"]) > retention_ms
    )


def ages_by_branch(metadata: Mapping[str, Any]) -> bool:
    """Whether a branch has a snapshot age of its own: Iceberg's expiry obeys it, whatever else it is told to keep."""
    return any(
        ref.get("type") == "branch" and ref.get("max-snapshot-age-ms") is not None
        for ref in metadata.get("refs", {}).values()
    )


def only_rewritten_since(metadata: Mapping[str, Any], snapshot_id: int) -> bool:
    """Whether the current snapshot descends from `snapshot_id` by rewrites alone, so that both hold the same rows.

    False where the history between the two is not complete any more.
    """
    current = int(metadata.get("current-snapshot-id") or -1)
    while current != snapshot_id:
        snapshot = snapshot_of(metadata, current)
        if snapshot is None or snapshot.get("summary", {}).get("operation") != REPLACE:
            return False
        current = int(snapshot.get("parent-snapshot-id") or -1)
    return True
