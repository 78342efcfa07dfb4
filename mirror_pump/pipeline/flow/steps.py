"""The steps that a pump reports to its observer, for the log, progress bars, metrics and tests."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Protocol, Self

from mirror_pump.pipeline.operations.table_changes import Failure


class Level(Enum):
    """The log level of a step."""

    DEBUG = "debug"
    """A routine step of every batch, chunk or job."""
    INFO = "info"
    WARNING = "warning"
    """An operator may have to act, or will want to know."""
    ERROR = "error"
    """An operator has to act: the problem does not go away by itself."""


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
    """A step, with the level of its log line. The steps of one activity are listed in their order.

    Warnings and errors also have a remedy, which applies unless the step's details name another one.
    """

    level: Level
    remedy: str
    """What the operator should do. Empty for steps that are neither a warning nor an error."""

    def __new__(cls, name: str, level: Level | None = None, remedy: str = "") -> Self:
        # Called only for the definitions below: Step("live") looks the member up and needs no level.
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
    """Another pump leads. This one waits until the other one has ended."""
    LEADING = "leading", Level.INFO
    LEAD_LOST = "lead-lost", Level.WARNING, _STANDS_BY
    """Another pump took over the leadership while this one was not connected. This one is a standby from now on."""
    STREAMING = "streaming", Level.INFO
    RECEIVED = "received", Level.DEBUG
    """A batch was received up to its last commit."""
    WRITTEN = "written", Level.DEBUG
    """All files of the batch are in storage. Nothing refers to them yet."""
    STAGED = "staged", Level.DEBUG
    """Manifests and metadata are in storage. The pointers have not moved yet."""
    PUBLISHED = "published", Level.DEBUG
    """The publish transaction committed."""
    ACKNOWLEDGED = "acknowledged", Level.DEBUG
    """The frontier was reported to the replication slot."""
    REGISTERED = "registered", Level.INFO
    """A table's registration was committed. Nothing is copied yet."""
    COPY_PLANNED = "copy-planned", Level.INFO
    CHUNK_COPIED = "chunk-copied", Level.DEBUG
    """A chunk's file is in storage. Nothing refers to it yet."""
    CHUNKS_PUBLISHED = "chunks-published", Level.DEBUG
    LIVE = "live", Level.INFO
    RESOLVING = "resolving", Level.DEBUG
    """Tasks begin to look up the rows that a table's equality deletes hide."""
    POSITIONS_WRITTEN = "positions-written", Level.DEBUG
    """The position deletes are in storage. Nothing refers to them yet."""
    RESOLVED = "resolved", Level.DEBUG
    """A publish replaced the equality deletes by the position deletes."""
    RESOLVE_REFUSED = "resolve-refused", Level.DEBUG
    """The table changed too much in the meantime. The conversion is computed again."""
    RESOLVE_FAILED = "resolve-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task failed. The pump tries again after a pause, and the stream continues."""
    MERGING = "merging", Level.DEBUG
    """Tasks begin to merge many small files into one."""
    MERGE_WRITTEN = "merge-written", Level.DEBUG
    """The merged files are in storage. Nothing refers to them yet."""
    MERGED = "merged", Level.DEBUG
    """A publish replaced the small files by the merged ones."""
    MERGE_REFUSED = "merge-refused", Level.DEBUG
    """The table changed too much in the meantime. The merge is computed again."""
    MERGE_FAILED = "merge-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task failed. The pump tries again after a pause, and the stream continues."""
    INDEX_BUILDING = "index-building", Level.DEBUG
    """The keys of a table's rows are being read for its key index."""
    INDEX_READY = "index-ready", Level.DEBUG
    """From the next commit on, the table's deletes are position deletes."""
    INDEX_FAILED = "index-failed", Level.WARNING, _INDEX_PASSES
    """The table has no key index for now. Its deletes are equality deletes."""
    TABLE_CHANGED = "table-changed", Level.WARNING, _FOLLOW
    """A table's columns, key, name or partitions changed, also in the lake. Its rows in the lake were still right."""
    TABLE_FILLING = "table-filling", Level.INFO
    """A table got a column with a constant default, or lost a partition. Its old content stays readable until its files
    are rewritten."""
    FILLING = "filling", Level.DEBUG
    """Tasks begin to rewrite files, with the value of a new column in every row."""
    FILLED = "filled", Level.DEBUG
    """A publish replaced the files without the column by the rewritten ones."""
    FILL_REFUSED = "fill-refused", Level.DEBUG
    """The table changed too much in the meantime. The fill is computed again."""
    FILL_FAILED = "fill-failed", Level.WARNING, _PASSES
    """A file could not be read, or a task failed. The pump tries again after a pause, and later copies the table
    again."""
    TABLE_COPIED_AGAIN = "table-copied-again", Level.WARNING, _COPIES
    """A table changed in a way that the stream does not show. Its old content stays readable until it is copied
    again."""
    TABLE_WAITING = "table-waiting", Level.WARNING, _OWNER
    """A table has to be copied again, but not before its owner has done what `reason` says."""
    TABLE_FAILED = "table-failed", Level.ERROR, _REGISTER_AGAIN
    TABLE_DROPPED = "table-dropped", Level.INFO
    """A table was dropped in Postgres. Its lake table stays readable as of its last frontier."""
    TABLE_NEGLECTED = "table-neglected", Level.WARNING, _MAINTAIN
    """No maintainer has looked at the table for a day, although commits go to it. Reported once a day."""
    NOTE_REFUSED = "note-refused", Level.WARNING, _OTHER_PREFIX
    """Another program writes messages with the pump's prefix into the WAL. The first one in each session is
    reported."""
    RETENTION = "retention", Level.INFO
    """A partition took a step on its way out of the heap: it was sealed, passed by the cut-line, proven, or dropped."""
    RETENTION_REFUSED = "retention-refused", Level.WARNING, _REASON_PASSES
    """A partition could not take its next step. The pump tries again after a pause."""
    RETENTION_STOPPED = "retention-stopped", Level.ERROR, _MEND_AND_RETAIN
    """No partition leaves the table's heap until an operator has looked at what `reason` says."""
    TIER_ADVANCED = "tier-advanced", Level.INFO
    """The cut-line of a table with heap retention has advanced. A new session continues from the frontier within a
    moment."""
    FOLDED = "folded", Level.DEBUG
    """Corrections of rows below the cut-line are in the lake."""
    FOLD_FAILED = "fold-failed", Level.WARNING, _PASSES
    """Corrections could not be read or written. The pump tries again after a pause, and the stream continues."""
    RETRYING = "retrying", Level.WARNING, _PASSES
    """The connection or a task failed. After a pause, the pump continues from what is published."""


class Observer(Protocol):
    """Called in the thread that took the step. It must return quickly."""

    def __call__(self, step: Step, /, **details: object) -> None: ...


def tell_of_failure(observer: Observer, failure: Failure) -> None:
    """Reports a table that has ended, and why."""
    table = str(failure.table.name)
    if failure.dropped:
        observer(Step.TABLE_DROPPED, table=table, reason=failure.error)
    else:
        observer(Step.TABLE_FAILED, table=table, error=failure.error)


def unobserved(step: Step, /, **details: object) -> None:
    """An observer that does nothing."""
