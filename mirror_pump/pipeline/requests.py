"""What a publish is asked to do: values that the loop puts together and `Publisher` makes true."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pump.lake.commit import SegmentFiles
from mirror_pump.lake.files import WrittenFile
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.assembler import Failure


@dataclass(frozen=True)
class CopiedChunk:
    """A chunk of an initial copy, read and written, to be published."""

    generation: int
    chunk_no: int
    rows: int
    file: WrittenFile | None
    """None when the chunk held no row."""


@dataclass(frozen=True)
class TableDelta:
    """What one publish does to one table."""

    table: MirroredTable
    segments: tuple[SegmentFiles, ...] = ()
    """In stream order."""
    chunks: tuple[CopiedChunk, ...] = ()
    truncate: bool = False
    """Everything that exists before `segments` goes; a running copy starts again."""
    restart_copy: bool = False
    """What was copied so far goes, and the copy starts again."""
    not_live_before: Lsn | None = None
    """The table may not go live before F reaches this: a value was read from the heap at that position."""


@dataclass(frozen=True)
class PublishRequest:
    """One publish: all tables of a batch, and whatever copies have finished meanwhile."""

    frontier: Lsn | None = None
    """The new F; None leaves it where it is."""
    commit_time_us: int = 0
    """Commit time of the last transaction at or below `frontier`, microseconds since the Unix epoch; 0 if unknown."""
    deltas: tuple[TableDelta, ...] = ()
    failures: tuple[Failure, ...] = ()
