"""Changes of a mirrored table as a whole: its definition changes, or it fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from mirror_pump.errors import TableError, with_remedy
from mirror_pump.lake.contents.kept_ranges import TierRanges
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class TableChange:
    """A change of a table's columns, key or name, or the beginning of a new copy of its rows."""

    table: MirroredTable
    """The table after the change."""
    former_lsn: Lsn
    """The table's start LSN before the change. A table that is copied again gets a new one."""
    before: int
    """Number of the batch's first segment after the change."""
    reason: str = ""
    """Why the table changed, for people. Empty if a search path changed alone, which is no news."""
    remedy: str = ""
    """What to do about the change, where that is not what is always said of its kind."""
    fills: bool = False
    """Files have to be rewritten: older rows have values in new columns (Column.initial), or were dropped with their
    partition."""
    dropped: tuple[tuple[int, PartitionBounds], ...] = ()
    """For each dropped partition, a segment number and the partition's bounds. Rows within the bounds are removed if
    they are in segments below this number, or in earlier batches."""
    where_different: bool = False
    """The copy replaces only the rows that differ from the heap: all files stay."""
    waits_for_owner: bool = False
    """The table is copied again once its owner has done what the reason says."""

    kept_ranges: TierRanges = ()
    """With heap retention: what it adds to MirroredTable.kept_ranges."""
    kept_before: int = 0
    """As `before`, of the last change that adds any."""
    lost: TierRanges = ()
    """Those that the copy removes before they are stored."""
    emptied: bool = False
    """A TRUNCATE has removed the rows of the stored ranges. It came before the copy, if there is one."""

    def with_kept_of(self, earlier: TableChange) -> Self:
        """With the ranges of an earlier change of the same table in the same publish."""
        kept_ranges, lost, emptied = (*earlier.kept_ranges, *self.kept_ranges), earlier.lost, earlier.emptied
        if self.emptied:
            kept_ranges, emptied = (), emptied or not earlier.copy_again
        elif self.copy_again:
            kept_ranges, lost = (), (*lost, *earlier.kept_ranges, *self.lost)
        kept_before = self.kept_before if self.kept_ranges else earlier.kept_before
        return replace(self, kept_ranges=kept_ranges, kept_before=kept_before, lost=lost, emptied=emptied)

    @property
    def copy_again(self) -> bool:
        """Whether a new initial copy replaces the table's rows."""
        return self.table.start_lsn != self.former_lsn


@dataclass(frozen=True)
class Failure:
    """A table whose changes cannot be applied any more, and why."""

    table: MirroredTable
    error: str
    dropped: bool = False
    """Whether the table was dropped in Postgres, so that nothing has to be fixed."""

    @property
    def event(self) -> TableEvent:
        """The event that changes the table's state."""
        return TableEvent.DROPPED if self.dropped else TableEvent.FAILED

    @classmethod
    def of(cls, table: MirroredTable, error: TableError) -> Self:
        """The failure with the error's text and remedy."""
        return cls(table, with_remedy(error))
