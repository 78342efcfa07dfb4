"""What reaches the pump's loop, whoever sends it: one inbox, one order, one thread that acts."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from mirror_pump.engine.tasks import SegmentResult
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.assembler import BatchEnd
from mirror_pump.pipeline.requests import CopiedChunk


@dataclass(frozen=True)
class SegmentInFlight:
    """A segment that was given to a task, and the tables it is decoded for."""

    result: Future[SegmentResult]
    tables: tuple[MirroredTable, ...]


@dataclass(frozen=True)
class Batch:
    """A complete batch; its segments may still be in their tasks."""

    end: BatchEnd
    segments: tuple[SegmentInFlight, ...]
    """In stream order, one for each segment of `end`."""
    received_at: float
    """time.monotonic() when the batch closed, seconds."""


@dataclass(frozen=True)
class CaughtUp:
    """The server has sent everything that ends at or below `lsn`, and every batch of it is in the inbox before this."""

    lsn: Lsn


@dataclass(frozen=True)
class FrontierWanted:
    """Somebody waits for F to reach `lsn`."""

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
class ThreadFailed:
    """One of the pump's threads ended with an error."""

    error: BaseException


@dataclass(frozen=True)
class StopRequested:
    """Leave the loop after the present work."""


Work: TypeAlias = (
    Batch
    | CaughtUp
    | FrontierWanted
    | ChunkCopied
    | CopyPlanned
    | CopyInvalid
    | CopyFailed
    | ThreadFailed
    | StopRequested
)
