"""The events that threads put into the inbox of the session's loop. The loop handles them one after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.partition_life import StepResult
from mirror_pump.pipeline.flow.batches import ReceivedBatch
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.add_chunks import CopiedChunk
from mirror_pump.pipeline.operations.combinations import TableOperation
from mirror_pump.pipeline.operations.requests import FeedRequest, TableRequest
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.source.catalog.change_feeds import ChangeFeed


@dataclass(frozen=True)
class CaughtUp:
    """The server has sent everything that ends at or below `lsn`. Its batches are in the inbox before this event."""

    lsn: Lsn


@dataclass(frozen=True)
class FrontierWanted:
    """A client waits for the frontier to reach `lsn`."""

    lsn: Lsn


@dataclass(frozen=True)
class ChunkCopied:
    """A chunk of a table's initial copy was read, and its file written."""

    table: MirroredTable
    chunk: CopiedChunk
    others_follow: bool
    """Whether other chunks are being copied, or will be as soon as a task is free."""


@dataclass(frozen=True)
class CopyPlanned:
    """The chunks of a table's copy are planned in the catalog. If there are none, the table may go live."""

    table: MirroredTable
    chunks: int
    """Number of chunks."""


@dataclass(frozen=True)
class CopyInvalid:
    """The table's heap was rewritten while it was copied. The copy has to restart."""

    table: MirroredTable


@dataclass(frozen=True)
class TableFailed:
    """A thread's work for the table has failed, so that the table has to fail. Other tables continue."""

    table: MirroredTable
    error: str
    """What happened, and what to do."""


@dataclass(frozen=True)
class LakeFileMissing:
    """A thread did not find a file of the table. The table's current state may not need the file any more."""

    table_id: TableId
    location: str
    """URI of the file."""
    copying: bool = False
    """Whether a chunk of the table's copy could not be written. Only another session reads the chunk again."""


@dataclass(frozen=True)
class LakeTableMoved:
    """The Iceberg catalog does not name what the mirror left: another engine committed to the lake table or its change
    feed, or dropped or renamed the table."""

    table_id: TableId


@dataclass(frozen=True)
class FileRewriteReady:
    """A rewrite of some files of a table was computed, and its files are written. It changes no row. Or one of a change
    feed, from which it may take what has expired."""

    table: MirroredTable | ChangeFeed
    rewrite: FileRewrite | FeedRewrite
    landed: Step
    """The step to report when the rewrite is published."""
    refused: Step
    """The step to report if the rewrite does not fit the table's current state."""
    details: Mapping[str, int]
    """Details of either step."""
    written_since: float
    """time.time() before the first of its files was begun, in seconds."""

    @property
    def name(self) -> str:
        """The table's name; of a feed that in the lake."""
        return str(self.table.lake_name if isinstance(self.table, ChangeFeed) else self.table.name)

    @property
    def request(self) -> TableRequest | FeedRequest:
        """What a publish has to do."""
        match self.table, self.rewrite:
            case MirroredTable() as table, FileRewrite() as rewrite:
                return TableRequest(table, (RewriteFiles(rewrite),))
            case ChangeFeed() as feed, FeedRewrite() as rewrite:
                return FeedRequest(feed.feed_id, feed.location, rewrite)
        raise TypeError(f"{self.name} cannot be rewritten by a {type(self.rewrite).__name__}")


@dataclass(frozen=True)
class IndexRead:
    """The index builder has finished a job for a table's key index."""

    table_id: TableId
    job: int
    """Number of the job (IndexJob.job)."""
    result: object | None
    """BuiltIndex or SucceededFiles (mirror_pump.pipeline.key_index.index_builder). None if the job failed."""
    error: str
    """Why the job failed. Empty if it succeeded."""


@dataclass(frozen=True)
class RowsRead:
    """The row reader has read what the deletes of a batch need, as far as it could."""

    reading: object
    """The request (mirror_pump.pipeline.key_index.whole_rows.RowReading)."""


@dataclass(frozen=True)
class IndexWanted:
    """Corrections of a table are about to be folded. With a key index, their deletes can be written by position."""

    table: MirroredTable
    deletes: int
    """Number of corrections."""
    answer: Future[bool]
    """Whether the table has an index or gets one. Cancelled if the session ends first."""


@dataclass(frozen=True)
class PublishWanted:
    """A publish of its own should carry out one operation on one table, so that a refusal holds up nothing else."""

    table: MirroredTable
    operation: TableOperation
    written_since: float | None = None
    """time.time() before the first of its files was begun, in seconds. None if no task wrote any."""
    answer: Future[StepResult] = field(default_factory=Future, compare=False)
    """Whether the operation is published. Cancelled if the session ends first."""


@dataclass(frozen=True)
class TieredTableChanged:
    """A tiered table was altered. Either `change` follows that, or the table ends with `failure`."""

    known_table: MirroredTable
    """The table as the mirror knew it."""
    change: TableChange | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class TableGivenUp:
    """A table has to fail so that the others can go on: the slot would be lost otherwise."""

    table_id: TableId
    error: str
    handled: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set once the table has failed, or has ended otherwise. Until then each new session gets the event."""


@dataclass(frozen=True)
class TablesMarked:
    """Tables were marked to be copied again: their changes so far belong to a registration that has ended."""


@dataclass(frozen=True)
class StreamAdded:
    """The mirror had no stream, and `init` has given it one: the next session has it."""


@dataclass(frozen=True)
class ThreadFailed:
    """One of the session's threads ended with an error."""

    error: BaseException


@dataclass(frozen=True)
class StopRequested:
    """The pump should stop after the current work."""


Event: TypeAlias = (
    ReceivedBatch
    | CaughtUp
    | FrontierWanted
    | ChunkCopied
    | CopyPlanned
    | CopyInvalid
    | TableFailed
    | LakeFileMissing
    | LakeTableMoved
    | FileRewriteReady
    | IndexRead
    | RowsRead
    | IndexWanted
    | PublishWanted
    | TieredTableChanged
    | TableGivenUp
    | TablesMarked
    | StreamAdded
    | ThreadFailed
    | StopRequested
)
