"""A batch of the stream, from its first segment to what tasks have made of it.

Its way has one type for each stage, and leads down this list only:

| stage | type | made by |
|---|---|---|
| received | `ReceivedBatch` | `stream.receiver`, which has given its segments to tasks |
| decoded | `DecodedBatch` | `session.batch_landing`, when these tasks are done |
| planned | `PublishRequest` (`operations.requests`) | `stream.batch_planning` |
| staged | `StagedPublish` (`publish.staged_publish`) | `publish.staging` |
| landed | `LandedPublish` (`publish.publisher`) | `publish.publisher`, and nothing else |
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from decoders.change_events import SegmentTransactions
from mirror_pump.engine.ingest.segment_tasks import SegmentResult
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
    data: bytes
    """Messages of the stream, including their headers (mirror_pump.source.stream.message_block)."""
    lengths: bytes
    """Lengths of the messages, int32 in native byte order."""
    tables: tuple[MirroredTable, ...]
    transactions: SegmentTransactions | None = None
    """Those of its messages, if one of the tables has a change feed."""


@dataclass(frozen=True)
class StreamTransaction:
    """A transaction, as change feeds tell of it."""

    final_lsn: Lsn
    """Position at which its commit record begins."""
    xid: int
    commit_time_us: int
    """Microseconds since 1970 UTC."""
    origin: str | None = None
    """Name of the replication origin; None for a transaction of this server."""


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE of one table. It removes the table's rows of earlier batches, and of this batch's segments with a
    number below `before`."""

    table: MirroredTable
    before: int
    transaction: StreamTransaction
    number: int
    """Number of row changes of the transaction before it."""

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


@dataclass(frozen=True)
class PendingSegment:
    """A segment that tasks decode, and the tables that it is decoded for."""

    results: tuple[Future[SegmentResult], ...]
    """One for each task, which decodes it for its share of the tables."""
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class ReceivedBatch:
    """A batch that was received completely. Tasks may still be working on its segments."""

    end: BatchEnd
    segments: tuple[PendingSegment, ...]
    """In stream order, one for each segment of `end`."""
    received: Period
    """From its first change to the moment in which it was complete."""
    written_since: float
    """time.time() before the first of its files was begun, in seconds."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch whose segments tasks have decoded and written."""

    end: BatchEnd
    tables: tuple[tuple[MirroredTable, ...], ...]
    """For each segment, in stream order, the tables that it was decoded for."""
    results: tuple[SegmentResult, ...]
    """For each segment, in stream order."""
    written_since: float
    """time.time() before the first of its files was begun, in seconds."""

    def task_periods(self, written_at: float) -> dict[str, Period]:
        """When the batch was decoded (nothing without segments) and its files were written, by names of details of a
        step.

        Tasks decode and write in parallel with the reception and with each other. `written_at`: time.time() when the
        last file was in storage.
        """
        if not self.results:
            return {"write": Period(written_at, written_at)}
        first_decoded = min(result.decoded_at for result in self.results)
        decode = Period(
            min(result.began_at for result in self.results), max(result.decoded_at for result in self.results)
        )
        return {"decode": decode, "write": Period(first_decoded, written_at)}
