"""Snapshot summaries: what a commit added and removed, and the totals derived from the parent's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mirror_pump.lake.format.data_files import FileContent

PENDING_SINCE = "mirror-pump.equality-deletes-since"
"""Summary key: commit time of the oldest pending equality delete, in milliseconds since 1970 UTC."""

REPLACE = "replace"
"""The operation of snapshots that replace files without changing rows (Iceberg spec, snapshots)."""

_LEDGER = {
    "written": "mirror-pump.written-bytes",
    "rewritten": "mirror-pump.rewritten-bytes",
    "dangling": "mirror-pump.dangling-position-deletes",
}
"""Summary keys of the fields of `SnapshotStats`."""


@dataclass
class FileTally:
    """Counts of one commit's files, as in Iceberg's snapshot summary; sizes in bytes."""

    data_files: int = 0
    records: int = 0
    equality_files: int = 0
    equality_deletes: int = 0
    position_files: int = 0
    position_deletes: int = 0
    size: int = 0

    def count(self, content: int, records: int, size: int) -> None:
        """Counts one file."""
        self.size += size
        if content == FileContent.DATA:
            self.data_files += 1
            self.records += records
        elif content == FileContent.EQUALITY_DELETES:
            self.equality_files += 1
            self.equality_deletes += records
        else:
            self.position_files += 1
            self.position_deletes += records

    @property
    def delete_files(self) -> int:
        """Delete files of both kinds."""
        return self.equality_files + self.position_files

    def __bool__(self) -> bool:
        return any(getattr(self, member.name) for member in fields(self))


_TOTALS = (
    ("total-data-files", "data_files"),
    ("total-delete-files", "delete_files"),
    ("total-records", "records"),
    ("total-files-size", "size"),
    ("total-position-deletes", "position_deletes"),
    ("total-equality-deletes", "equality_deletes"),
)


def operation(added: FileTally, removed: FileTally) -> str:
    """Iceberg's name of a commit's operation (spec, snapshots).

    Readers of appends may rely on `append`. Engines look for conflicting deletes in `overwrite` and `delete` snapshots
    only, so nothing that adds a delete file may be a `replace`. Only the caller knows whether a commit is a replace.
    """
    if not removed and not added.delete_files:
        return "append"
    return "overwrite" if added.data_files else "delete"


def summarise(
    added: FileTally, removed: FileTally, parent: Mapping[str, str] | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """The snapshot's summary: operation, nonzero changes, totals, and `extra`.

    A total that the parent does not have, because another engine left it out, stays unknown. `parent` is None for a
    table's first snapshot.
    """
    changes = {
        "added-data-files": added.data_files,
        "added-records": added.records,
        "added-delete-files": added.delete_files,
        "added-equality-delete-files": added.equality_files,
        "added-equality-deletes": added.equality_deletes,
        "added-position-delete-files": added.position_files,
        "added-position-deletes": added.position_deletes,
        "added-files-size": added.size,
        "deleted-data-files": removed.data_files,
        "deleted-records": removed.records,
        "removed-delete-files": removed.delete_files,
        "removed-equality-delete-files": removed.equality_files,
        "removed-equality-deletes": removed.equality_deletes,
        "removed-position-delete-files": removed.position_files,
        "removed-position-deletes": removed.position_deletes,
        "removed-files-size": removed.size,
    }
    totals = {}
    for name, attribute in _TOTALS:
        before = "0" if parent is None else parent.get(name)
        if before is not None:
            totals[name] = int(before) + getattr(added, attribute) - getattr(removed, attribute)
    numbers = {name: value for name, value in changes.items() if value} | totals
    if added or removed:
        numbers["changed-partition-count"] = 1
    return {"operation": operation(added, removed), **_text(numbers.items()), **extra}


def totals(tally: FileTally) -> dict[str, str]:
    """The totals in the summary of a snapshot whose live files are counted in `tally`."""
    return _text((name, getattr(tally, attribute)) for name, attribute in _TOTALS)


def _text(numbers: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {name: str(value) for name, value in numbers}


def pending_since(metadata: Mapping[str, Any]) -> int | None:
    """Commit time of the oldest equality delete of the current snapshot, as far as the history tells, in milliseconds.

    Other engines' snapshots do not record it. Then the oldest snapshot with pending deletes in an unbroken sequence
    counts. None if no delete is pending.
    """
    snapshots = metadata.get("snapshots", ())
    wanted, found = metadata.get("current-snapshot-id"), None
    # Newest first: the current snapshot nearly always records it.
    for snapshot in sorted(snapshots, key=lambda candidate: candidate.get("sequence-number", 0), reverse=True):
        if snapshot["snapshot-id"] != wanted:
            continue
        summary = snapshot.get("summary", {})
        if not int(summary.get("total-equality-deletes", 0)):
            break
        if PENDING_SINCE in summary:
            return int(summary[PENDING_SINCE])
        found = int(snapshot["timestamp-ms"])
        wanted = snapshot.get("parent-snapshot-id")
    return found


def pending_after(
    metadata: Mapping[str, Any], summary: Mapping[str, str], resolved: int | None, timestamp: int
) -> dict[str, str]:
    """The summary entry with the commit time of the oldest equality delete that is pending after a commit.

    `summary` has the commit's totals, `timestamp` is its time in milliseconds. The commit converts all equality deletes
    up to the sequence number `resolved` (None: it converts none).
    """
    if not int(summary.get("total-equality-deletes", 0)):
        return {}
    since = pending_since(metadata) or timestamp
    if resolved is not None:
        later = [snapshot for snapshot in metadata["snapshots"] if snapshot["sequence-number"] > resolved]
        since = min((int(snapshot["timestamp-ms"]) for snapshot in later), default=timestamp)
    return {PENDING_SINCE: str(since)}


@dataclass(frozen=True)
class SnapshotStats:
    """Figures that each snapshot of this project carries on from its predecessor, in addition to Iceberg's totals."""

    written: int = 0
    """Total bytes of files of commits that added rows or deletes."""
    rewritten: int = 0
    """Total bytes of files of merges and conversions of deletes, which change no row."""
    dangling: int = 0
    """Rows of live position-delete files that refer to data files replaced by merges: they no longer hide anything."""

    @property
    def amplification(self) -> float | None:
        """Bytes written in total per byte that had to be written; None before the first."""
        return (self.written + self.rewritten) / self.written if self.written else None

    def after(self, added: FileTally, removed: FileTally, again: int | None) -> SnapshotStats:
        """The figures after one more commit. `again`: bytes of files from a file rewrite, None if it was none."""
        if again is None:
            return SnapshotStats(self.written + added.size, self.rewritten, self.dangling)
        dangling = self.dangling
        if removed.data_files or removed.position_files:
            # A merge changes no row, so this balances the row count that the totals imply. A conversion of equality
            # deletes is left out: the rows that it hides were hidden before, but the totals did not count that.
            dangling += removed.records - added.records + added.position_deletes - removed.position_deletes
        return SnapshotStats(self.written + added.size - again, self.rewritten + again, dangling)

    def to_summary(self) -> dict[str, str]:
        """The figures as entries of a snapshot summary."""
        return {key: str(getattr(self, name)) for name, key in _LEDGER.items()}


def snapshot_stats(metadata: Mapping[str, Any]) -> SnapshotStats:
    """The figures as of the current snapshot.

    Snapshots of other engines do not carry them on, so those of the newest snapshot that has them count. If no retained
    snapshot has them, they start again from zero.
    """
    snapshots = metadata.get("snapshots", ())
    for snapshot in sorted(snapshots, key=lambda candidate: candidate.get("sequence-number", 0), reverse=True):
        summary = snapshot.get("summary", {})
        if _LEDGER["written"] in summary:
            return SnapshotStats(**{name: int(summary.get(key, 0)) for name, key in _LEDGER.items()})
    return SnapshotStats()


def live_rows(metadata: Mapping[str, Any], summary: Mapping[str, str]) -> int:
    """Rows that a reader of the snapshot with this summary finds.

    An upper bound while equality deletes are pending. Inexact after another engine's rewrite, which may leave position
    deletes that no longer hide anything.
    """
    rows = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
    return rows + snapshot_stats(metadata).dangling
