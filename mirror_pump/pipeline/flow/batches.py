"""What the stream is cut into: segments, the end of a batch, and what happened to whole tables in it."""

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
