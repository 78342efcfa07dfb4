"""What a publish is asked to do: values that the loop puts together and `Publisher` makes true."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.flow.batches import Failure, TableChange


@dataclass(frozen=True)
class CopiedChunk:
    """A chunk of an initial copy, read and written, to be published."""

    generation: int
    chunk_no: int
    rows: int
    file: WrittenFile | None
    """None when the chunk held no row."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in the file."""


@dataclass(frozen=True)
class SegmentChange:
    """What one segment of the stream does to one table."""

    files: SegmentFiles
    keys: SegmentKeys | None = None
    """What it deletes and brings, by key, where no file of its deletes was written yet."""

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.files.data or self.files.deletes or (self.keys is not None and len(self.keys.packed)))

    @property
    def deleted(self) -> int:
        """Keys that it deletes."""
        return sum(file.record_count for file in self.files.deletes) + (len(self.keys.packed) if self.keys else 0)


@dataclass(frozen=True)
class TierAdvance:
    """T moves up to the upper bound of a sealed partition, whose rows are the lake's and the delta's from then on."""

    partition_id: str
    """modak.partitions.partition_id."""
    cut: int
    """The new T, a tier value."""


@dataclass(frozen=True)
class DeltaFold:
    """Correction rows of modak.delta that come into the lake with a publish, below T only.

    They are the newest of their keys as of the time they were read; a row that was corrected again since has another
    version, and stays."""

    segment: SegmentChange
    """Deletes every key of them, and brings the rows that they put in their place."""
    versions: tuple[tuple[str, int], ...]
    """(pk, version) of each."""
    cut: int
    """T when they were read."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in its file."""


@dataclass(frozen=True)
class TableDelta:
    """What one publish does to one table."""

    table: MirroredTable
    segments: tuple[SegmentChange, ...] = ()
    """In stream order."""
    chunks: tuple[CopiedChunk, ...] = ()
    truncate: bool = False
    """Everything that exists before `segments` goes; a running copy starts again."""
    restart_copy: bool = False
    """What was copied so far goes, and the copy starts again."""
    not_live_before: Lsn | None = None
    """The table may not go live before F reaches this: a value was read from the heap at that position."""
    sidecars: frozenset[int] = frozenset()
    """Field IDs of the columns that have a sidecar in the segments' files; the schema gets those that it lacks."""
    resolution: FileRewrite | None = None
    """Files in place of others. Left out if it no longer fits the table, and said so."""
    change: TableChange | None = None
    """`table` is what the table becomes with this publish: its columns, key and name go into lake and catalog. If it is
    copied again, everything that exists before `segments` goes, for readers only once the copy is complete."""
    dropped: tuple[tuple[int, PartitionBounds], ...] = ()
    """Rows within these bounds, of so many of `segments` and of all that exists before, are gone."""
    advance: TierAdvance | None = None
    """T moves with this publish, which does nothing else."""
    fold: DeltaFold | None = None
    """Corrections of rows below T. Left out if they do not fit the table any more."""
    refresh_archive: bool = False
    """S is to be made anew: it holds on to files that the table has exchanged since."""
    republished: bool = False
    """How it is published is another thing than was recorded, and is recorded anew."""

    @property
    def copies(self) -> bool:
        """Whether the table is copied again from here on."""
        return self.change is not None and self.change.copy_again

    @property
    def fills(self) -> bool:
        """Whether rows from before have to be given values of new columns."""
        return self.change is not None and self.change.fills and not self.change.copy_again


@dataclass(frozen=True)
class PublishRequest:
    """One publish: all tables of a batch, and whatever copies have finished meanwhile."""

    frontier: Lsn | None = None
    """The new F; None leaves it where it is."""
    commit_time_us: int = 0
    """Commit time of the last transaction at or below `frontier`, microseconds since the Unix epoch; 0 if unknown."""
    deltas: tuple[TableDelta, ...] = ()
    failures: tuple[Failure, ...] = ()
    written_since: float = field(default_factory=time.time)
    """No file of the deltas is older, seconds since the Unix epoch: a sweep may have taken one that is."""
