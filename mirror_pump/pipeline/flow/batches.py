"""The parts of the stream: segments, and the end of a batch with what happened to whole tables in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange


@dataclass(frozen=True)
class Period:
    """When a part of a batch's work began and ended: time.time() in seconds."""

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended_at - self.began_at)


@dataclass(frozen=True)
class Segment:
    """A slice of the stream, and the tables whose changes in it are applied."""

    number: int
    """Position within its batch, from 0."""
    messages: Sequence[bytes]
    """Complete CopyData messages, including their headers."""
    size: int
    """Bytes of all messages."""
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE of one table. It removes the table's rows of earlier batches, and of this batch's segments with a
    number below `before`."""

    table: MirroredTable
    before: int

    @property
    def table_id(self) -> TableId:
        return self.table.table_id


@dataclass(frozen=True)
class BatchEnd:
    """The end of a batch: all its segments were emitted. With them, every transaction that ends at or below `end_lsn`
    was emitted."""

    end_lsn: Lsn
    commit_time_us: int
    """Commit time of the last transaction, microseconds since the Unix epoch."""
    segments: int
    """Number of segments."""
    changes: int
    """Number of row changes."""
    transactions: int
    truncations: tuple[Truncation, ...] = ()
    failures: tuple[Failure, ...] = ()
    changed_tables: tuple[TableChange, ...] = ()
    """In stream order."""
    xids: Sequence[int] = ()
    """IDs of the transactions, 32 bits each."""
