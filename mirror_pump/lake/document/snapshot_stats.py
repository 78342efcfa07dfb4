"""Figures about rows and files that only the history as a whole tells, or that our snapshots carry on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirror_pump.lake.document.snapshot_summary import PENDING_SINCE, FileCounts, SnapshotSummary, Total
from mirror_pump.lake.document.table_metadata import TableMetadata

_ENTRIES = {
    "written": "mirror-pump.written-bytes",
    "rewritten": "mirror-pump.rewritten-bytes",
    "dangling": "mirror-pump.dangling-position-deletes",
    "uncertain": "mirror-pump.rows-uncertain",
}
"""Summary entries of the fields of `SnapshotStats`."""


@dataclass(frozen=True)
class SnapshotStats:
    """Figures that each snapshot of this project carries on from its predecessor, in addition to Iceberg's totals."""

    written: int = 0
    """Total bytes of files of commits that added rows or deletes."""
    rewritten: int = 0
    """Total bytes of files of merges and conversions of deletes, which change no row."""
    dangling: int = 0
    """Rows of live position-delete files that refer to data files replaced by merges: they no longer hide anything."""
    uncertain: int = 0
    """1 if `dangling` may lack rows or have too many, because files were replaced without counting them. Until no
    position delete is left."""

    def after(self, added: FileCounts, removed: FileCounts, again: int | None) -> SnapshotStats:
        """The figures after one more commit. `again`: bytes of files from a file rewrite, None if it was none."""
        if again is None:
            return replace(self, written=self.written + added.size)
        dangling = self.dangling
        if removed.data_files or removed.position_files:
            # A merge changes no row, so this balances the row count that the totals imply. A conversion of equality
            # deletes is left out: the rows that it hides were hidden before, but the totals did not count that.
            dangling += removed.records - added.records + added.position_deletes - removed.position_deletes
        return replace(
            self, written=self.written + added.size - again, rewritten=self.rewritten + again, dangling=dangling
        )

    def to_summary(self) -> dict[str, str]:
        """The figures as entries of a snapshot summary."""
        return {key: str(getattr(self, name)) for name, key in _ENTRIES.items()}


def snapshot_stats(metadata: TableMetadata) -> SnapshotStats:
    """The figures as of the current snapshot.

    Snapshots of other engines do not carry them on, so those of the newest snapshot that has them count, although such
    a snapshot may have replaced files. If no retained snapshot has them, they start again from zero.
    """
    for snapshot in metadata.snapshots.newest_first():
        summary = snapshot.summary
        if _ENTRIES["written"] in summary:
            stats = SnapshotStats(**{name: int(summary.get(key) or 0) for name, key in _ENTRIES.items()})
            return stats if snapshot.snapshot_id == metadata.current_snapshot_id else replace(stats, uncertain=1)
    return SnapshotStats(uncertain=1)


def live_rows(metadata: TableMetadata, summary: SnapshotSummary) -> int:
    """Rows that a reader of the current snapshot, which has this summary, finds, as far as it tells (see
    `rows_are_exact`)."""
    deletes = summary.total(Total.POSITION_DELETES) or 0
    dangling = min(max(snapshot_stats(metadata).dangling, 0), deletes)
    return (summary.total(Total.RECORDS) or 0) - deletes + dangling


def rows_are_exact(metadata: TableMetadata, summary: SnapshotSummary) -> bool:
    """Whether `live_rows` is exact. While equality deletes are pending it is an upper bound, if nothing else is
    uncertain. After another engine's rewrite it is close, until no position delete is left."""
    if summary.total(Total.RECORDS) is None or summary.total(Total.EQUALITY_DELETES) != 0:
        return False
    return summary.total(Total.POSITION_DELETES) == 0 or not snapshot_stats(metadata).uncertain


def pending_since(metadata: TableMetadata) -> int | None:
    """Commit time of the oldest equality delete of the current snapshot, as far as the history tells, in milliseconds.

    Other engines' snapshots do not record it. Then the oldest snapshot with pending deletes in an unbroken sequence
    counts. None if no delete is pending.
    """
    snapshot_id, oldest_ms = metadata.current_snapshot_id, None
    # Newest first: the current snapshot nearly always records it.
    for snapshot in metadata.snapshots.newest_first():
        if snapshot.snapshot_id != snapshot_id:
            continue
        summary = snapshot.summary
        if not summary.total(Total.EQUALITY_DELETES):
            break
        if summary.equality_deletes_since is not None:
            return summary.equality_deletes_since
        oldest_ms = snapshot.timestamp_ms
        snapshot_id = snapshot.parent_id
    return oldest_ms


def pending_after(
    metadata: TableMetadata, summary: Mapping[str, str], resolved: int | None, timestamp: int
) -> dict[str, str]:
    """The summary entry with the commit time of the oldest equality delete that is pending after a commit.

    `summary` has the entries with the commit's totals, `timestamp` is its time in milliseconds. The commit converts all
    equality deletes up to the sequence number `resolved` (None: it converts none).
    """
    if not SnapshotSummary(summary).total(Total.EQUALITY_DELETES):
        return {}
    since = pending_since(metadata) or timestamp
    if resolved is not None:
        later = (snapshot for snapshot in metadata.snapshots if snapshot.sequence_number > resolved)
        since = min((snapshot.timestamp_ms for snapshot in later), default=timestamp)
    return {PENDING_SINCE: str(since)}
