"""Snapshot summaries: what a commit added and removed, and the totals that follow from its parent's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from mirror_pump.lake.files import FileContent


@dataclass
class Tally:
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


def operation(added: Tally, removed: Tally) -> str:
    """Iceberg's name for the commit (spec, snapshots): readers of appends may rely on `append`."""
    if not removed and not added.delete_files:
        return "append"
    return "overwrite" if added.data_files else "delete"


def summarise(
    added: Tally, removed: Tally, parent: Mapping[str, str] | None, extra: Mapping[str, str]
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


def _text(numbers: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {name: str(value) for name, value in numbers}
