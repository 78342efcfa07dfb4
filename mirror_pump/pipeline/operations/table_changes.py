"""What may happen to a mirrored table as a whole: it changes, or it cannot be mirrored any further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mirror_pump.errors import TableError
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.table_life import TableEvent


@dataclass(frozen=True)
class TableChange:
    """A table is another from segment `before` on: its columns, its key, its name, or, copied again, all its rows."""

    table: MirroredTable
    """As it is from there on."""
    former_lsn: Lsn
    """Its start LSN until then. A table that is copied again has a new one."""
    before: int
    reason: str = ""
    fills: bool = False
    """Files are to be written anew: rows from before have values in new columns (Column.initial), or are not part of
    the table any more."""
    dropped: tuple[tuple[int, PartitionBounds], ...] = ()
    """Rows within these bounds, of the segments before that number and of all former ones, are gone."""
    waits_for_owner: bool = False
    """It is copied again once the table's owner has done what the reason says."""

    @property
    def copy_again(self) -> bool:
        """What the lake has of it goes, once its present content is copied."""
        return self.table.start_lsn != self.former_lsn


@dataclass(frozen=True)
class Failure:
    """A table whose changes cannot be applied any more, and why."""

    table: MirroredTable
    error: str
    dropped: bool = False
    """It was dropped in Postgres: it has ended, and nobody has to mend anything."""

    @property
    def event(self) -> TableEvent:
        """What it is in the table's life."""
        return TableEvent.DROPPED if self.dropped else TableEvent.FAILED

    @classmethod
    def of(cls, table: MirroredTable, error: TableError) -> Self:
        """What happened, and what to do about it."""
        return cls(table, ". ".join(part.rstrip(".") for part in (str(error), error.remedy) if part))
