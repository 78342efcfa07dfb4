"""What a rewrite of data files is to do, as Iceberg's procedure takes it. No Spark: `status` reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NO_SIZE = 1 << 62
"""Bytes that no file has, within what Java's long can add to."""


@dataclass(frozen=True)
class Rewrite:
    """What one rewrite_data_files is to do; sizes in bytes."""

    target_bytes: int
    small_below: int
    """Data files below this size are to be merged; 0: none is, nor are large ones divided."""
    min_input_files: int
    max_group_bytes: int
    sort_by: tuple[str, ...] = ()
    """Columns to order the rows by; none keeps their order."""
    deletes: bool = False
    """Also rewrites every data file that a delete file may concern."""
    max_files: int | None = None
    """Rewrites so many files and leaves the others to the next call: bounds what a commit that fails costs."""

    def complete(self, counts: Mapping[str, int]) -> bool:
        """Whether the rewrite that returned these counts left nothing to the next call."""
        return self.max_files is None or counts.get("rewritten_data_files_count", 0) < self.max_files

    def options(self) -> dict[str, str]:
        """As the procedure takes them."""
        options = {
            "target-file-size-bytes": str(self.target_bytes),
            "min-file-size-bytes": str(self.small_below),
            "max-file-size-bytes": str(self.target_bytes * 9 // 5 if self.small_below else _NO_SIZE),
            "min-input-files": str(self.min_input_files),
            "max-file-group-size-bytes": str(self.max_group_bytes),
            # One group at a time: memory and load are those of one group.
            "max-concurrent-file-group-rewrites": "1",
            # Rewritten rows keep their age, so that deletes which land meanwhile apply to them and are no conflict.
            "use-starting-sequence-number": "true",
        }
        if self.max_files is not None:
            options["max-files-to-rewrite"] = str(self.max_files)
        if self.deletes:
            options["delete-file-threshold"] = "1"
        else:
            # Those that have no row left are taken all the same. By default it is those with three rows in ten deleted.
            options["delete-ratio-threshold"] = "1.0"
        return options
