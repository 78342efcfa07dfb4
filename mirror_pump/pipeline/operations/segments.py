"""What one segment of changes, from the stream or from corrections, does to one table."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.key_index.index_plan import SegmentKeys


@dataclass(frozen=True)
class SegmentChange:
    """What one segment of the stream does to one table."""

    files: SegmentFiles
    keys: SegmentKeys | None = None
    """What it deletes and brings, by key, where no file of its deletes was written yet."""

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.files.data or self.files.deletes or (self.keys is not None and len(self.keys.packed)))

    @property
    def deleted(self) -> int:
        """Keys that it deletes."""
        return sum(file.record_count for file in self.files.deletes) + (len(self.keys.packed) if self.keys else 0)

    @property
    def locations(self) -> tuple[str, ...]:
        """URIs of its files."""
        return tuple(file.path for file in (*self.files.data, *self.files.deletes))
