"""What reaches the pump's loop, whoever sends it: one inbox, one order, one thread that acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from mirror_pump.engine.segment_tasks import SegmentResult
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import BatchEnd, Period
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.add_chunks import CopiedChunk
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections


@dataclass(frozen=True)
class PendingSegment:
    """A segment that was given to a task, and the tables it is decoded for."""

    result: Future[SegmentResult]
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class Batch:
    """A complete batch; its segments may still be in their tasks."""

    end: BatchEnd
    segments: tuple[PendingSegment, ...]
    """In stream order, one for each segment of `end`."""
    received: Period
    """From its first change to the moment in which it was complete."""
    written_since: float
    """time.time() before the first of its files was begun, seconds."""


def task_periods(results: Sequence[SegmentResult], written_at: float) -> dict[str, Period]:
    """When a batch was decoded (nothing without segments) and its files were written, by names of details of a step.

    Tasks decode and write in parallel with the reception and with each other. `written_at`: time.time() when the last
    file was in storage.
    """
    if not results:
        return {"write": Period(written_at, written_at)}
    decode = Period(min(result.began_at for result in results), max(result.decoded_at for result in results))
    return {"decode": decode, "write": Period(min(result.decoded_at for result in results), written_at)}


@dataclass(frozen=True)
class CaughtUp:
    """The server has sent everything that ends at or below `lsn`, and every batch of it is in the inbox before this."""

    lsn: Lsn


@dataclass(frozen=True)
class FrontierWanted:
    """Somebody waits for the frontier to reach `lsn`."""

    lsn: Lsn


@dataclass(frozen=True)
class ChunkCopied:
    """A chunk of a table's initial copy is in storage."""

    table: MirroredTable
    chunk: CopiedChunk


@dataclass(frozen=True)
class CopyPlanned:
    """The chunks of a table's copy are in the catalog; with none, the table is ready to go live."""

    table: MirroredTable
    chunks: int


@dataclass(frozen=True)
class CopyInvalid:
    """The table's heap was rewritten while it was copied: what was copied so far counts for nothing."""

    table: MirroredTable


@dataclass(frozen=True)
class CopyFailed:
    """The table cannot be copied; others go on."""

    table: MirroredTable
    error: str


@dataclass(frozen=True)
class LakeFileMissing:
    """Somebody missed a file of the table, at whatever state of it."""

    table_id: TableId
    location: str
    """URI of the file."""
    copying: bool = False
    """A chunk of the table's copy could not be written: it is read again by another session only."""


@dataclass(frozen=True)
class FileRewriteReady:
    """Files are in storage that may take the place of others of a table, without a change of rows."""

    table: MirroredTable
    resolution: FileRewrite
    landed: Step
    """What to report when they have."""
    refused: Step
    """... and when they do not fit the table's present state."""
    details: Mapping[str, int]
    """Figures to report with either."""
    written_since: float
    """time.time() before the first of its files was begun, seconds."""


@dataclass(frozen=True)
class IndexRead:
    """What the key index of a table needed is read from the lake."""

    table_id: TableId
    job: int
    result: object | None
    """pipeline.index_builder's BuiltIndex or FollowedFiles; None if it failed."""
    error: str


@dataclass(frozen=True)
class IndexWanted:
    """Corrections of a table are about to be folded, which a key index keeps from being written by key."""

    table: MirroredTable
    deletes: int
    """How many."""
    answer: Future[bool]
    """Whether there is one, or is going to be. Cancelled when the session ends first."""


@dataclass(frozen=True)
class AdvanceWanted:
    """A sealed partition's rows are to become the lake's: the cut-line moves to its upper bound."""

    table: MirroredTable
    advance: AdvanceCutline
    answer: Future[str | None]
    """None: the cut-line has moved. Else why not, in words; to be asked for again later. Cancelled when the session
    ends first."""


@dataclass(frozen=True)
class FoldReady:
    """Correction rows of a table are written, to be published."""

    table: MirroredTable
    fold: FoldCorrections
    written_since: float
    """time.time() before its files were begun, seconds."""
    answer: Future[bool]
    """Whether it landed. Cancelled when the session ends first."""


@dataclass(frozen=True)
class ArchiveBranchOutdated:
    """The published snapshot of a table holds on to files that the table has exchanged for others."""

    table: MirroredTable


@dataclass(frozen=True)
class ThreadFailed:
    """One of the pump's threads ended with an error."""

    error: BaseException


@dataclass(frozen=True)
class StopRequested:
    """Leave the loop after the present work."""


Event: TypeAlias = (
    Batch
    | CaughtUp
    | FrontierWanted
    | ChunkCopied
    | CopyPlanned
    | CopyInvalid
    | CopyFailed
    | LakeFileMissing
    | FileRewriteReady
    | IndexRead
    | IndexWanted
    | AdvanceWanted
    | FoldReady
    | ArchiveBranchOutdated
    | ThreadFailed
    | StopRequested
)
