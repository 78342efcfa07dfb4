"""Questions about a table's snapshots: which may expire, and whether two of them hold the same rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mirror_pump.lake.metadata.table_metadata import is_archive_snapshot, snapshot_of
from mirror_pump.lake.metadata.snapshot_summary import REPLACE


def referenced(metadata: Mapping[str, Any]) -> frozenset[int]:
    """IDs of the snapshots that branches and tags name, and of the current one."""
    named = {int(ref["snapshot-id"]) for ref in metadata.get("refs", {}).values()}
    return frozenset(named | {int(metadata.get("current-snapshot-id") or -1)})


def expirable(
    metadata: Mapping[str, Any], now_ms: int, retention_ms: int, newest: int, protected: Collection[int]
) -> tuple[int, ...]:
    """IDs of the snapshots that may be removed, oldest first.

    A snapshot's age counts from when the next one replaced it. So the table stays readable as of any moment within the
    retention, even if it had not changed for long before. The `newest` snapshots, those in `protected`, and those that
    a branch or tag names always stay. The order is by sequence number, since snapshot IDs are random. Snapshots of the
    branch `cold` replace each other and are not part of the table's history in time; commits thin them out
    (mirror_pump.lake.metadata.table_metadata).
    """
    ordered = sorted(
        (snapshot for snapshot in metadata["snapshots"] if not is_archive_snapshot(snapshot)),
        key=lambda snapshot: snapshot.get("sequence-number", 0),
    )
    held = referenced(metadata) | set(protected)
    candidates = ordered[: max(len(ordered) - max(newest, 1), 0)]
    return tuple(
        int(snapshot["snapshot-id"])
        for snapshot, successor in zip(candidates, ordered[1:], strict=False)
        if snapshot["snapshot-id"] not in held and now_ms - int(successor["timestamp-ms"]) > retention_ms
    )


def ages_by_branch(metadata: Mapping[str, Any]) -> bool:
    """Whether a branch has its own maximum snapshot age. Iceberg's expiry obeys it in any case."""
    return any(
        ref.get("type") == "branch" and ref.get("max-snapshot-age-ms") is not None
        for ref in metadata.get("refs", {}).values()
    )


def only_rewritten_since(metadata: Mapping[str, Any], snapshot_id: int) -> bool:
    """Whether the current snapshot descends from `snapshot_id` by rewrites alone, so that both hold the same rows.

    False if the history between the two is no longer complete.
    """
    current = int(metadata.get("current-snapshot-id") or -1)
    while current != snapshot_id:
        snapshot = snapshot_of(metadata, current)
        if snapshot is None or snapshot.get("summary", {}).get("operation") != REPLACE:
            return False
        current = int(snapshot.get("parent-snapshot-id") or -1)
    return True
