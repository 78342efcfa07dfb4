"""Questions about a table's snapshots: which may expire, and whether two of them hold the same rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mirror_pump.lake.document.table_metadata import TableMetadata


def referenced(metadata: TableMetadata) -> frozenset[int]:
    """IDs of the snapshots that branches and tags name, and of the current one."""
    named: set[int] = {ref.snapshot_id for ref in metadata.refs.values()}
    current = metadata.current_snapshot_id
    return frozenset(named if current is None else named | {current})


def expirable(
    metadata: TableMetadata,
    now_ms: int,
    retention_ms: int,
    newest: int,
    protected: Collection[int],
    pinned: Collection[int] = (),
) -> tuple[int, ...]:
    """IDs of the snapshots that may be removed, oldest first.

    A snapshot's age counts from when the next one replaced it. So the table stays readable as of any moment within the
    retention, even if it had not changed for long before. The `newest` snapshots, those in `protected`, and those that
    a branch or tag names always stay. The order is by sequence number, since snapshot IDs are random. Snapshots of the
    archive branch replace each other and count by themselves. Commits thin them out, but not the newest, which name
    files of rows that are deleted since (mirror_pump.lake.document.snapshot_thinning). As there, they stay from the
    oldest one in `pinned` on.
    """
    retained_ids = referenced(metadata) | set(protected)
    ids: list[int] = []
    for is_archive in (False, True):
        ordered = [snapshot for snapshot in metadata.snapshots.oldest_first() if snapshot.is_archive is is_archive]
        candidates = ordered[: max(len(ordered) - max(newest, 1), 0)]
        for snapshot, successor in zip(candidates, ordered[1:], strict=False):
            if is_archive and snapshot.snapshot_id in pinned:
                break
            if snapshot.snapshot_id not in retained_ids and now_ms - successor.timestamp_ms > retention_ms:
                ids.append(snapshot.snapshot_id)
    return tuple(ids)


def ages_by_branch(metadata: TableMetadata) -> bool:
    """Whether a branch has its own maximum snapshot age. Iceberg's expiry obeys it in any case."""
    return any(ref.is_branch and ref.has_snapshot_age for ref in metadata.refs.values())


def only_rewritten_since(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether the current snapshot descends from `snapshot_id` by rewrites alone, so that both hold the same rows.

    False if the history between the two is no longer complete.
    """
    return snapshot_id in with_same_rows(metadata)


def with_same_rows(metadata: TableMetadata) -> Iterator[int]:
    """IDs of the current snapshot, and of those that it descends from by rewrites alone, the newest first."""
    current = metadata.current_snapshot_id
    while current is not None:
        yield current
        snapshot = metadata.snapshot(current)
        current = snapshot.parent_id if snapshot is not None and snapshot.summary.only_rewrites else None
