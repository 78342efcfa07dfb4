"""Options of a rewrite of data files by Iceberg's procedure. Does not import Spark, as `status` uses it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NO_SIZE = 1 << 62
"""A size in bytes that no file has, low enough that Java's long does not overflow."""


@dataclass(frozen=True)
class RewriteRequest:
    """What one call of rewrite_data_files does; sizes in bytes."""

    target_bytes: int
    small_below: int
    """Data files below this size are merged. 0: none is merged, and large ones are not split."""
    min_input_files: int
    max_group_bytes: int
    sort_by: tuple[str, ...] = ()
    """Columns to sort the rows by; if empty, rows keep their order."""
    deletes: bool = False
    """Also rewrites every data file that a delete file may refer to."""
    max_files: int | None = None
    """Rewrites at most this many files and leaves others to the next call, to limit the cost of a failed commit."""

    def complete(self, counts: Mapping[str, int]) -> bool:
        """Whether the rewrite that returned these counts left nothing for the next call."""
        return self.max_files is None or counts.get("rewritten_data_files_count", 0) < self.max_files

    def options(self) -> dict[str, str]:
        """The options in the procedure's form."""
        options = {
            "target-file-size-bytes": str(self.target_bytes),
            "min-file-size-bytes": str(self.small_below),
            "max-file-size-bytes": str(self.target_bytes * 9 // 5 if self.small_below else _NO_SIZE),
            "min-input-files": str(self.min_input_files),
            "max-file-group-size-bytes": str(self.max_group_bytes),
            # One group at a time limits memory and load to those of one group.
            "max-concurrent-file-group-rewrites": "1",
            # Rewritten rows keep their sequence number, so that deletes which land meanwhile apply and do not conflict.
            "use-starting-sequence-number": "true",
        }
        if self.max_files is not None:
            options["max-files-to-rewrite"] = str(self.max_files)
        if self.deletes:
            options["delete-file-threshold"] = "1"
        else:
            # Rewrites only files without any live row. By default, files with 30% deleted rows would be rewritten too.
            options["delete-ratio-threshold"] = "1.0"
        return options
