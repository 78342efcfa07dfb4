"""Snapshot summaries: what a commit added and removed, and the totals that follow from its parent's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mirror_pump.lake.format.data_files import FileContent

PENDING_SINCE = "mirror-pump.equality-deletes-since"
"""Summary key: when the oldest pending equality delete was committed, milliseconds since 1970 UTC."""

REPLACE = "replace"
"""The operation of snapshots that exchange files without a change of rows (Iceberg spec, snapshots)."""

_LEDGER = {
    "written": "mirror-pump.written-bytes",
    "rewritten": "mirror-pump.rewritten-bytes",
    "dangling": "mirror-pump.dangling-position-deletes",
}
"""Summary keys of `SnapshotStats`'s figures."""


@dataclass
class FileTally:
    """Files of one commit, counted as Iceberg's snapshot summary counts them; sizes in bytes."""

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
        return any(getattr(self, one.name) for one in fields(self))


_TOTALS = (
    ("total-data-files", "data_files"),
    ("total-delete-files", "delete_files"),
    ("total-records", "records"),
    ("total-files-size", "size"),
    ("total-position-deletes", "position_deletes"),
    ("total-equality-deletes", "equality_deletes"),
)


def operation(added: FileTally, removed: FileTally) -> str:
    """Iceberg's name for the commit (spec, snapshots).

    Readers of appends may rely on `append`; engines look for conflicting deletes in `overwrite` and `delete` snapshots
    only, so nothing that adds a delete file may be a `replace`. That a commit is one, only the caller knows.
    """
    if not removed and not added.delete_files:
        return "append"
    return "overwrite" if added.data_files else "delete"


def summarise(
    added: FileTally, removed: FileTally, parent: Mapping[str, str] | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """The snapshot's summary: operation, changes that are not zero, totals, and `extra`.

    A total whose previous value is unknown (another engine left it out) stays unknown. `parent` is None for a table's
    first snapshot.
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
    """What a summary says of all live files of its snapshot."""
    return _text((name, getattr(tally, attribute)) for name, attribute in _TOTALS)


def _text(numbers: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {name: str(value) for name, value in numbers}


def pending_since(metadata: Mapping[str, Any]) -> int | None:
    """When the oldest equality delete of the current snapshot was committed, as far as the history tells.

    Snapshots of other engines say nothing of it: then the oldest one counts since which deletes have been pending.
    None if the table has none.
    """
    snapshots = metadata.get("snapshots", ())
    wanted, found = metadata.get("current-snapshot-id"), None
    # From the newest on, which nearly always is the current one and says it.
    for snapshot in sorted(snapshots, key=lambda one: one.get("sequence-number", 0), reverse=True):
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
    """What the summary of a commit at `timestamp` says beside its totals: when the oldest of the equality deletes came
    that are pending afterwards. The commit resolves all those up to the sequence number `resolved`."""
    if not int(summary.get("total-equality-deletes", 0)):
        return {}
    since = pending_since(metadata) or timestamp
    if resolved is not None:
        later = [one for one in metadata["snapshots"] if one["sequence-number"] > resolved]
        since = min((int(one["timestamp-ms"]) for one in later), default=timestamp)
    return {PENDING_SINCE: str(since)}


@dataclass(frozen=True)
class SnapshotStats:
    """What each snapshot of this project carries on from the one before, beside Iceberg's totals."""

    written: int = 0
    """Bytes of all files of commits that brought rows or deletes."""
    rewritten: int = 0
    """Bytes of all files of resolves and merges, which change no row."""
    dangling: int = 0
    """Rows of live position-delete files that are about data files which a merge has replaced: they hide nothing."""

    @property
    def amplification(self) -> float | None:
        """Bytes written in all, for each that had to be; None before the first."""
        return (self.written + self.rewritten) / self.written if self.written else None

    def after(self, added: FileTally, removed: FileTally, again: int | None) -> SnapshotStats:
        """With one more commit's files; `again`: bytes of those that an exchange brought, None if it was none."""
        if again is None:
            return SnapshotStats(self.written + added.size, self.rewritten, self.dangling)
        dangling = self.dangling
        if removed.data_files or removed.position_files:
            # A merge: no row changes by it, so what the totals say of their number is made up for. Not a resolve: the
            # rows that it hides were hidden by equality deletes, which the totals leave out.
            dangling += removed.records - added.records + added.position_deletes - removed.position_deletes
        return SnapshotStats(self.written + added.size - again, self.rewritten + again, dangling)

    def to_summary(self) -> dict[str, str]:
        """As a snapshot's summary says it."""
        return {key: str(getattr(self, name)) for name, key in _LEDGER.items()}


def snapshot_stats(metadata: Mapping[str, Any]) -> SnapshotStats:
    """As of the current snapshot. Other engines' snapshots do not carry it on: then the newest counts that does; where
    the history knows none, it begins anew."""
    snapshots = metadata.get("snapshots", ())
    for snapshot in sorted(snapshots, key=lambda one: one.get("sequence-number", 0), reverse=True):
        summary = snapshot.get("summary", {})
        if _LEDGER["written"] in summary:
            return SnapshotStats(**{name: int(summary.get(key, 0)) for name, key in _LEDGER.items()})
    return SnapshotStats()


def live_rows(metadata: Mapping[str, Any], summary: Mapping[str, str]) -> int:
    """Rows that a reader of the snapshot with this summary finds. An upper bound while equality deletes are pending;
    inexact after another engine's rewrite, which leaves position deletes that hide nothing without a word."""
    rows = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
    return rows + snapshot_stats(metadata).dangling
