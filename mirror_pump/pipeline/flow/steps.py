"""The pump's steps as others may observe them: progress bars, metrics, logs, and whoever wants to interrupt one."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Protocol, Self

from mirror_pump.pipeline.operations.table_changes import Failure


class Level(Enum):
    """How loud a step is in the log."""

    DEBUG = "debug"
    """A step of every batch, chunk or job."""
    INFO = "info"
    WARNING = "warning"
    """Somebody may have to act, or will ask why."""
    ERROR = "error"
    """Somebody has to act: it does not pass by itself."""


_PASSES = "Nothing, if it passes: it is tried again after a pause. Otherwise mend what `error` says."

_INDEX_PASSES = (
    "Nothing, if it passes: the index is built again within minutes, and until then the table's deletes are "
    "equality deletes. Otherwise mend what `error` says."
)
_FOLLOW = "Nothing in the mirror. Queries of the lake that name what changed have to follow."
_COPIES = (
    "Nothing: readers keep the former content, if there is one, until the copy is complete. `mirror-pump status` "
    "shows how far it is."
)
_OWNER = "Do what `reason` says: the table is then copied again by itself. Until then readers keep its last state."
_REGISTER_AGAIN = (
    "Mend what `error` says; then `mirror-pump unregister` the table and `mirror-pump register` it again. Until "
    "then readers keep its last state, and the other tables go on."
)
_OTHER_PREFIX = (
    "Find who calls pg_logical_emit_message() with the prefix of mirror-pump, and have it use another one: such "
    "messages are not believed."
)
_REASON_PASSES = (
    "Nothing, if `reason` passes by itself (a lock, a pin, an open transaction): it is tried again after a pause."
    " Otherwise mend it; `mirror-pump retain` shows every partition, and why it is still there."
)
_STANDS_BY = "Nothing: the other pump goes on. Look at the network of this one if it happens again."
_MAINTAIN = "Start `mirror-pump run --maintain`, or `mirror-pump maintain` from cron."
_MEND_AND_RETAIN = (
    "Look at what `reason` names: the partition's rows differ from the lake's, or the table is not as retention "
    "needs it. Mend the heap, then `mirror-pump retain` the table to go on; docs/retention.md names causes."
)


class Step(StrEnum):
    """In the order in which a batch, then a copy, a resolve, a merge, an index goes through them.

    Each has the level of its log line; warnings and errors also have a remedy, for where a step's details bring none.
    """

    level: Level
    remedy: str
    """What to do; empty for steps that are no news."""

    def __new__(cls, name: str, level: Level | None = None, remedy: str = "") -> Self:
        # Called for each definition only: Step("live") looks the member up, and needs no level.
        if level is None:
            raise TypeError(f"step {name} has no level")
        if (level in (Level.WARNING, Level.ERROR)) != bool(remedy):
            raise TypeError(f"step {name}: warnings and errors say what to do, and nothing else does")
        step = str.__new__(cls, name)
        step._value_ = name
        step.level = level
        step.remedy = remedy
        return step

    STANDBY = "standby", Level.INFO
    """Another pump leads: this one waits until that has ended."""
    LEADING = "leading", Level.INFO
    LEAD_LOST = "lead-lost", Level.WARNING, _STANDS_BY
    """Another pump took the lead while this one could not be reached: this one is a standby from now on."""
    STREAMING = "streaming", Level.INFO
    RECEIVED = "received", Level.DEBUG
    """A batch is complete: its last commit was received. `receive` is the Period of its reception."""
    WRITTEN = "written", Level.DEBUG
    """All files of the batch are in storage; nothing refers to them yet. `decode` and `write` are Periods of it."""
    STAGED = "staged", Level.DEBUG
    """Manifests and metadata are in storage; the pointers are not moved yet."""
    PUBLISHED = "published", Level.DEBUG
    """The publish transaction landed."""
    ACKNOWLEDGED = "acknowledged", Level.DEBUG
    """The slot was told."""
    REGISTERED = "registered", Level.INFO
    """A table's registration was committed; nothing is copied yet."""
    COPY_PLANNED = "copy-planned", Level.INFO
    CHUNK_COPIED = "chunk-copied", Level.DEBUG
    """A chunk's file is in storage; nothing refers to it yet."""
    CHUNKS_PUBLISHED = "chunks-published", Level.DEBUG
    LIVE = "live", Level.INFO
    RESOLVING = "resolving", Level.DEBUG
    """Tasks are about to look up the rows that a table's equality deletes hide."""
    POSITIONS_WRITTEN = "positions-written", Level.DEBUG
    """The position deletes are in storage; nothing refers to them yet."""
    RESOLVED = "resolved", Level.DEBUG
    """They have taken the equality deletes' place, in a publish that landed."""
    RESOLVE_REFUSED = "resolve-refused", Level.DEBUG
    """The table has changed too much meanwhile: the resolve begins anew."""
    RESOLVE_FAILED = "resolve-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task broke: tried again after a pause, while the stream goes on."""
    MERGING = "merging", Level.DEBUG
    """Tasks are about to make one file of many small ones."""
    MERGE_WRITTEN = "merge-written", Level.DEBUG
    """The merged files are in storage; nothing refers to them yet."""
    MERGED = "merged", Level.DEBUG
    """They have taken the small files' place, in a publish that landed."""
    MERGE_REFUSED = "merge-refused", Level.DEBUG
    """The table has changed too much meanwhile: the merge begins anew."""
    MERGE_FAILED = "merge-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task broke: tried again after a pause, while the stream goes on."""
    INDEX_BUILDING = "index-building", Level.DEBUG
    """The keys of a table's rows are being read for its key index."""
    INDEX_READY = "index-ready", Level.DEBUG
    """From the next commit on the table's deletes are positions."""
    INDEX_FAILED = "index-failed", Level.WARNING, _INDEX_PASSES
    """There is no index for now: equality deletes go on."""
    TABLE_CHANGED = "table-changed", Level.WARNING, _FOLLOW
    """Columns, key, name or partitions of a table are others, in the lake too; its rows were right under them."""
    TABLE_FILLING = "table-filling", Level.INFO
    """A table got a column with a constant default, or lost a partition: its old content stays readable until its files
    are written anew."""
    FILLING = "filling", Level.DEBUG
    """Tasks are about to write files anew, with the value of a new column in every row."""
    FILLED = "filled", Level.DEBUG
    """They have taken the place of those without, in a publish that landed."""
    FILL_REFUSED = "fill-refused", Level.DEBUG
    """The table has changed too much meanwhile: the fill begins anew."""
    FILL_FAILED = "fill-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task broke: tried again after a pause, then the table is copied again."""
    TABLE_COPIED_AGAIN = "table-copied-again", Level.WARNING, _COPIES
    """A table changed in a way that the stream does not carry: its old content stays readable until it is copied."""
    TABLE_WAITING = "table-waiting", Level.WARNING, _OWNER
    """A table has to be copied again, and cannot be before its owner has done what `reason` says."""
    TABLE_FAILED = "table-failed", Level.ERROR, _REGISTER_AGAIN
    TABLE_DROPPED = "table-dropped", Level.INFO
    """A table was dropped in Postgres: what the lake has of it stays readable as of its last frontier."""
    TABLE_NEGLECTED = "table-neglected", Level.WARNING, _MAINTAIN
    """No maintainer has looked at the table for a day, though it is committed to: told once a day."""
    NOTE_REFUSED = "note-refused", Level.WARNING, _OTHER_PREFIX
    """Somebody else puts messages of our prefix into the stream: told of the first in each session."""
    RETENTION = "retention", Level.INFO
    """A partition is one step further on its way out of the heap: sealed, passed by the cut-line, proven, dropped."""
    RETENTION_REFUSED = "retention-refused", Level.WARNING, _REASON_PASSES
    """Its next step could not be taken: tried again after a pause."""
    RETENTION_STOPPED = "retention-stopped", Level.ERROR, _MEND_AND_RETAIN
    """Nothing more leaves the table's heap until somebody has looked: `reason` says at what."""
    TIER_ADVANCED = "tier-advanced", Level.INFO
    """The cut-line of a table with heap retention has moved; the pump begins again from the frontier, which takes a
    moment."""
    FOLDED = "folded", Level.DEBUG
    """Corrections of rows below the cut-line are in the lake."""
    FOLD_FAILED = "fold-failed", Level.WARNING, _PASSES
    """They could not be read, or not be written: tried again after a pause, while the stream goes on."""
    RETRYING = "retrying", Level.WARNING, _PASSES
    """The connection or a task failed: the pump goes back to what is published, after a pause."""


class Observer(Protocol):
    """Called in the thread that took the step; it must return quickly."""

    def __call__(self, step: Step, /, **details: object) -> None: ...


def tell_of_failure(observer: Observer, failure: Failure) -> None:
    """Says of a table whose changes are not applied any more why that is."""
    table = str(failure.table.name)
    if failure.dropped:
        observer(Step.TABLE_DROPPED, table=table, reason=failure.error)
    else:
        observer(Step.TABLE_FAILED, table=table, error=failure.error)


def unobserved(step: Step, /, **details: object) -> None:
    """The observer of a pump that nobody watches."""
