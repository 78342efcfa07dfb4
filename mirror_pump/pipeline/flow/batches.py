"""What the stream is cut into: segments, the end of a batch, and what happened to whole tables in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from mirror_pump.errors import TableError
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import Lsn, MirroredTable, TableId


@dataclass(frozen=True)
class Segment:
    """A slice of the stream and the tables whose changes in it count."""

    number: int
    """Position within its batch, from 0."""
    messages: Sequence[bytes]
    """Whole CopyData messages, headers included."""
    size: int
    """Bytes in all."""
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE of one table: its rows of earlier batches and of the segments before `before` go."""

    table: MirroredTable
    before: int

    @property
    def table_id(self) -> TableId:
        return self.table.table_id


@dataclass(frozen=True)
class TableChange:
    """A table is another from segment `before` on: its columns, its key, its name, or, copied again, all its rows."""

    table: MirroredTable
    """As it is from there on."""
    former_lsn: Lsn
    """Its L0 until then. A table that is copied again has a new one."""
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
    """A table that has to be set aside, and why."""

    table: MirroredTable
    error: str

    @classmethod
    def of(cls, table: MirroredTable, error: TableError) -> Self:
        """What happened, and what to do about it."""
        return cls(table, ". ".join(part.rstrip(".") for part in (str(error), error.remedy) if part))


@dataclass(frozen=True)
class BatchEnd:
    """The batch is complete: `segments` were emitted, and with them everything that ends at or below `end_lsn` is."""

    end_lsn: Lsn
    commit_time_us: int
    """Commit time of the last transaction, microseconds since the Unix epoch."""
    segments: int
    changes: int
    transactions: int
    truncations: tuple[Truncation, ...] = ()
    failures: tuple[Failure, ...] = ()
    changed_tables: tuple[TableChange, ...] = ()
    """In stream order."""
    xids: Sequence[int] = ()
    """Of the transactions, 32 bits each."""
