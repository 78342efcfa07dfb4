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


_RETRIED = "Nothing if the error is temporary: the pump tries again after a pause. Otherwise fix what `error` says."
_INDEX_RETRIED = (
    "Nothing if the error is temporary: the index is built again within minutes. Until then, the table's "
    "deletes are equality deletes. Otherwise fix what `error` says."
)
_ADAPT_QUERIES = "Nothing in the mirror. Adapt queries of the lake table that name what changed."
_COPIED = (
    "Nothing: readers keep the former content, if there is any, until the copy is complete. `mirror-pump status` "
    "shows its progress."
)
_OWNER_ACTS = "Do what `reason` says. The pump then copies the table again. Until then, readers keep its last state."
_READ_ONLY_ROLE = (
    "Nothing for the mirror: the lake table has the rows of the table in Postgres again. Find the program, and let it "
    "connect with a reader's role (`mirror-pump reader ROLE`). What it wrote can be read from `metadata` until "
    "maintenance removes it."
)
_REGISTER_AGAIN = (
    "Fix what `error` says, then run `mirror-pump unregister TABLE` and `mirror-pump register TABLE`. Until then, "
    "readers keep its last state, and the other tables continue."
)
_OTHER_PREFIX = (
    "Find the program that calls pg_logical_emit_message() with mirror-pump's prefix, and have it use another prefix. "
    "The pump ignores such messages."
)
_REASON_RETRIED = (
    "Nothing if `reason` is temporary (a lock, a pin, an open transaction): the pump tries again after a pause. "
    "Otherwise fix it. `mirror-pump retain` shows every partition, and why it is still in the heap."
)
_OTHER_LEADS = "Nothing: the other pump continues. If it happens again, check the network of this pump."
_LEADER_HANGS = (
    "Nothing for the mirror: this pump leads now, and the other one can publish nothing. Find out why the other one "
    "hangs: its process is stopped, its machine overloaded, or its network cut off from the database."
)
_UNKNOWN_METADATA = (
    "Nothing if a pump was killed: it had not published the file. If the database, or its schema modak, was restored, "
    "readers may have seen this last publish: tell them, and compare all tables by `mirror-pump verify`."
)
_RECONCILE_FILES = (
    "Nothing for readers: heap and lake went back together. If this is the mirror's database, and no copy of it, stop "
    "the pump and run `mirror-pump reconcile`: until then, maintenance deletes no file."
)
_CATCH_UP = (
    "Find out why the slot does not move: `mirror-pump status` names the error, or the open transaction. Meanwhile "
    "raise max_slot_wal_keep_size if the server's disk has room."
)
_COPY_EVERYTHING = "Mend the cause, then copy all tables again: docs/operations.md#copying-everything-again."
_MAINTAIN = "Start `mirror-pump run --maintain`, or `mirror-pump maintain` from cron."
_GATHER = (
    "Nothing if it is rare: the files are merged, and maintenance makes larger ones of them. Otherwise let late rows "
    "gather (fold_age), or register the table anew with wider lake partitions: docs/retention.md#lake-partitions."
)
_FIX_AND_RETAIN = (
    "Look at what `reason` names: the partition's rows differ from the lake's, or retention does not support the "
    "table as it is. Fix it, then run `mirror-pump retain TABLE`. docs/retention.md lists possible causes."
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
    LEADER_DEPOSED = "leader-deposed", Level.WARNING, _LEADER_HANGS
    """The leader held its lock without a sign of life. This pump ended its sessions and leads next."""
    LEADING = "leading", Level.INFO
    LEAD_LOST = "lead-lost", Level.WARNING, _OTHER_LEADS
    """Another pump took over the leadership while this one was not connected. This one is a standby from now on."""
    FAILOVER_FOLLOWED = "failover-followed", Level.INFO
    """The server was promoted since the last publish, and lacks nothing that readers have seen. The pump continues on
    its timeline."""
    UPGRADE_FOLLOWED = "upgrade-followed", Level.INFO
    """pg_upgrade took the mirror and its slot to another server, and nothing is lost. The pump continues there."""
    METADATA_UNKNOWN = "metadata-unknown", Level.WARNING, _UNKNOWN_METADATA
    """At the start of a process: the lake has a metadata file beyond the frontier that the catalog does not know."""
    DATABASE_WENT_BACK = "database-went-back", Level.WARNING, _RECONCILE_FILES
    """A mirror without a stream continues on a server that lacks commits of the lake. No file is deleted meanwhile."""
    SPARK_READY = "spark-ready", Level.INFO
    """Spark runs the tasks from now on. Until then, the pump's own process does."""
    STREAMING = "streaming", Level.INFO
    WITHOUT_STREAM = "without-stream", Level.INFO
    """A session begins for tiered tables alone: nothing is received."""
    RECEIVED = "received", Level.DEBUG
    """A batch was received up to its last commit. `receive` is the Period of its reception."""
    WRITTEN = "written", Level.DEBUG
    """All files of the batch are in storage. Nothing refers to them yet. `decode` and `write` are Periods of it."""
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
    ROWS_COMPARED = "rows-compared", Level.INFO
    """A table's heap was compared with the lake: of `rows` rows, `copied` are written, and keys of `deleted` rows of
    the lake. Nothing refers to the files yet."""
    CHUNKS_PUBLISHED = "chunks-published", Level.DEBUG
    LIVE = "live", Level.INFO
    CONVERTING = "converting", Level.DEBUG
    """Tasks begin to look up the rows that a table's equality deletes hide."""
    POSITIONS_WRITTEN = "positions-written", Level.DEBUG
    """The position deletes are in storage. Nothing refers to them yet."""
    CONVERTED = "converted", Level.DEBUG
    """A publish replaced the equality deletes by the position deletes."""
    CONVERSION_REFUSED = "conversion-refused", Level.DEBUG
    """The table changed too much in the meantime. The conversion is computed again."""
    CONVERSION_FAILED = "conversion-failed", Level.WARNING, _RETRIED
    """A file could not be read, or a task failed. The pump tries again after a pause, and the stream continues."""
    MERGING = "merging", Level.DEBUG
    """Tasks begin to merge many small files into one."""
    MERGE_WRITTEN = "merge-written", Level.DEBUG
    """The merged files are in storage. Nothing refers to them yet."""
    MERGED = "merged", Level.DEBUG
    """A publish replaced the small files by the merged ones."""
    MERGE_REFUSED = "merge-refused", Level.DEBUG
    """The table changed too much in the meantime. The merge is computed again."""
    MERGE_FAILED = "merge-failed", Level.WARNING, _RETRIED
    """A file could not be read, or a task failed. The pump tries again after a pause, and the stream continues."""
    CHANGES_EXPIRED = "changes-expired", Level.INFO
    """A change feed lost its oldest files, whose changes are older than it keeps them. Readers learn from where on it
    is complete."""
    INDEX_BUILDING = "index-building", Level.DEBUG
    """The keys of a table's rows are being read for its key index."""
    INDEX_READY = "index-ready", Level.DEBUG
    """From the next commit on, the table's deletes are position deletes."""
    INDEX_FAILED = "index-failed", Level.WARNING, _INDEX_RETRIED
    """The table has no key index for now. Its deletes are equality deletes."""
    ROWS_READING = "rows-reading", Level.DEBUG
    """A batch waits until the rows of a table without a key are read, of which it deletes some."""
    TABLE_CHANGED = "table-changed", Level.WARNING, _ADAPT_QUERIES
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
    FILL_FAILED = "fill-failed", Level.WARNING, _RETRIED
    """A file could not be read, or a task failed. The pump tries again after a pause, and later copies the table
    again."""
    TABLE_COPIED_AGAIN = "table-copied-again", Level.WARNING, _COPIED
    """A table changed in a way that the stream does not show. Its old content stays readable until it is copied
    again."""
    TABLE_WAITING = "table-waiting", Level.WARNING, _OWNER_ACTS
    """A table has to be copied again, but not before its owner has done what `reason` says."""
    FOREIGN_COMMIT_UNDONE = "foreign-commit-undone", Level.WARNING, _READ_ONLY_ROLE
    """Another engine changed the rows of a table's lake table. The pump moved main back to its own snapshot."""
    TABLE_FAILED = "table-failed", Level.ERROR, _REGISTER_AGAIN
    TABLE_DROPPED = "table-dropped", Level.INFO
    """A table was dropped in Postgres. Its lake table stays readable as of its last frontier."""
    TABLE_NEGLECTED = "table-neglected", Level.WARNING, _MAINTAIN
    """No maintainer has looked at the table for a day, although commits go to it. Reported once a day."""
    WAL_SHORT = "wal-short", Level.WARNING, _CATCH_UP
    """At the present rate, the slot will soon keep more WAL than it may. Reported once an hour while it lasts."""
    SLOT_DROPPED = "slot-dropped", Level.ERROR, _COPY_EVERYTHING
    """The WAL guard dropped the slot, so that the server's disk does not fill. The pump stops."""
    NOTE_REFUSED = "note-refused", Level.WARNING, _OTHER_PREFIX
    """Another program writes messages with the pump's prefix into the WAL. The first one in each session is
    reported."""
    RETENTION = "retention", Level.INFO
    """A partition took a step on its way out of the heap: it was sealed, passed by the cut-line, proven, or dropped."""
    RETENTION_REFUSED = "retention-refused", Level.WARNING, _REASON_RETRIED
    """A partition could not take its next step. The pump tries again after a pause."""
    RETENTION_STOPPED = "retention-stopped", Level.ERROR, _FIX_AND_RETAIN
    """No partition leaves the table's heap until an operator has looked at what `reason` says."""
    TIER_ADVANCED = "tier-advanced", Level.INFO
    """The cut-line of a table has advanced. If the stream concerns the table, a new session continues from the frontier
    within a moment."""
    EXPIRED = "expired", Level.INFO
    """The retention line of a table has moved: the rows below it have left the lake."""
    FOLDED = "folded", Level.DEBUG
    """Corrections of rows below the cut-line are in the lake."""
    FOLD_FAILED = "fold-failed", Level.WARNING, _RETRIED
    """Corrections could not be read or written. The pump tries again after a pause, and the stream continues."""
    PARTITIONS_SCATTERED = "partitions-scattered", Level.WARNING, _GATHER
    """A batch or a fold has rows in many lake partitions of a table, and so has written that many small files."""
    RETRYING = "retrying", Level.WARNING, _RETRIED
    """The connection or a task failed. After a pause, the pump continues from what is published."""


class Observer(Protocol):
    """Called in the thread that took the step. It must return quickly."""

    def __call__(self, step: Step, /, **details: object) -> None: ...


def report_failure(observer: Observer, failure: Failure) -> None:
    """Reports a table that has ended, and why."""
    table = str(failure.table.name)
    if failure.dropped:
        observer(Step.TABLE_DROPPED, table=table, reason=failure.error)
    else:
        observer(Step.TABLE_FAILED, table=table, error=failure.error)


def unobserved(step: Step, /, **details: object) -> None:
    """An observer that does nothing."""
