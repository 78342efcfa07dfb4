"""Statistics of a table's files and history, on which maintenance decisions are based."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

SIZE_CLASS_FACTOR = 8
"""Ratio between one class of small data files and the next smaller one. Files are merged into the next class only, so a
row is rewritten once per class, however slowly its table grows."""


@dataclass(frozen=True)
class TableStats:
    """Statistics of a table's current snapshot and history. Sizes in bytes, times in milliseconds since 1970 UTC."""

    data_files: int = 0
    small_files: int = 0
    """Data files below three quarters of the target size; of a partitioned table, of the lake partition that has the
    most of them, since only files of one partition are merged."""
    small_by_class: tuple[int, ...] = ()
    """The same by size class, largest class first. Each number is that of the partition with the most files of that
    class."""
    records: int = 0
    """Rows in data files, including deleted ones."""
    data_bytes: int = 0
    delete_files: int = 0
    equality_delete_files: int = 0
    equality_delete_rows: int = 0
    position_delete_files: int = 0
    position_delete_files_together: int | None = None
    """Those of the lake partition that has the most of them, which can be merged. None: all of them."""
    position_delete_rows: int = 0
    delete_bytes: int = 0
    manifests: int = 0
    snapshots: int = 0
    oldest_snapshot_ms: int | None = None
    metadata_bytes: int = 0
    """Length of the metadata file, which every commit writes as a whole."""
    sequence_number: int = 0
    """Grows with every commit, so it measures how many files commits have left behind in storage."""

    @property
    def delete_rows(self) -> int:
        """Rows in live delete files."""
        return self.equality_delete_rows + self.position_delete_rows

    def to_json(self) -> dict[str, Any]:
        """What modak.lake_stats.stats holds."""
        return asdict(self)


def class_bounds(target_bytes: int) -> tuple[int, ...]:
    """Upper size bounds of the classes of small files, largest first.

    Iceberg also considers a file of three quarters of the target size as done.
    """
    bounds = [target_bytes * 3 // 4]
    while bounds[-1] // SIZE_CLASS_FACTOR >= 1 << 18:
        bounds.append(bounds[-1] // SIZE_CLASS_FACTOR)
    return tuple(bounds)


FIGURE_NAMES = tuple(member.name for member in fields(TableStats))
"""Keys of modak.lake_stats.stats."""
