"""The changes of one segment to one table, from the stream or from corrections."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.key_index.index_plan import SegmentKeys


@dataclass(frozen=True)
class SegmentChange:
    """The changes of one segment to one table."""

    files: SegmentFiles
    keys: SegmentKeys | None = None
    """The keys that it deletes and adds, if its deletes are not written to a file yet."""

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.files.data or self.files.deletes or (self.keys is not None and len(self.keys.packed)))

    @property
    def deleted(self) -> int:
        """Number of keys that it deletes."""
        return sum(file.record_count for file in self.files.deletes) + (len(self.keys.packed) if self.keys else 0)

    @property
    def locations(self) -> tuple[str, ...]:
        """URIs of its files."""
        return tuple(file.path for file in (*self.files.data, *self.files.deletes))
