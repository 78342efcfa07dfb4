"""A table's files and history in figures: what maintenance is decided on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

SIZE_CLASS_FACTOR = 8
"""Small data files are counted in classes, each of which ends at an eighth of the next: files are merged into the next
class only, so a row is rewritten once per class however slowly a table grows."""


@dataclass(frozen=True)
class TableStats:
    """One table's current snapshot and history; sizes in bytes, times in milliseconds since 1970 UTC."""

    data_files: int = 0
    small_files: int = 0
    """Data files below three quarters of the target size."""
    small_by_class: tuple[int, ...] = ()
    """The same by size class, largest class first."""
    records: int = 0
    """Rows in data files, those that deletes hide included."""
    data_bytes: int = 0
    delete_files: int = 0
    equality_delete_files: int = 0
    equality_delete_rows: int = 0
    position_delete_files: int = 0
    position_delete_rows: int = 0
    delete_bytes: int = 0
    manifests: int = 0
    snapshots: int = 0
    oldest_snapshot_ms: int | None = None
    metadata_bytes: int = 0
    """Length of the metadata file, which every commit writes whole."""
    sequence_number: int = 0
    """Grows with every commit: the measure of what commits have left behind in storage."""

    @property
    def delete_rows(self) -> int:
        """Rows in live delete files."""
        return self.equality_delete_rows + self.position_delete_rows

    def to_json(self) -> dict[str, Any]:
        """What modak.lake_stats.stats holds."""
        return asdict(self)


def class_bounds(target_bytes: int) -> tuple[int, ...]:
    """Sizes below which files are small, one per class, largest first.

    Iceberg too takes a file of three quarters of the target for done.
    """
    bounds = [target_bytes * 3 // 4]
    while bounds[-1] // SIZE_CLASS_FACTOR >= 1 << 18:
        bounds.append(bounds[-1] // SIZE_CLASS_FACTOR)
    return tuple(bounds)


FIGURE_NAMES = tuple(one.name for one in fields(TableStats))
"""Keys of modak.lake_stats.stats."""
