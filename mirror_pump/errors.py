"""Errors, classified by who has to act. Each says what happened, to which object, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sql.mirror_names import spoken

_mirrors: list[str] = []
"""The name of the mirror that this process's command is about, if it has one."""
_called: ContextVar[str | None] = ContextVar("mirror", default=None)
"""That of a call, in programs that read several."""


def speak_of(mirror: str | None) -> None:
    """From now on, errors and remedies of this process are about the mirror of this name."""
    _mirrors[:] = [] if mirror is None else [mirror]


@contextmanager
def speaking_of(mirror: str | None) -> Iterator[None]:
    """Within the block, in this thread, errors are about the mirror of this name."""
    token = _called.set(mirror)
    try:
        yield
    finally:
        _called.reset(token)


def of_this_mirror(text: str) -> str:
    """What is said to people, about the mirror that this process is about. Without marks: a text that is stored must
    not have them."""
    return spoken(text, _called.get() or (_mirrors[0] if _mirrors else None))


class MirrorPumpError(Exception):
    """Base class. `str()` says what happened and to what; `remedy` says what to do."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(of_this_mirror(message))
        self.remedy = of_this_mirror(remedy)


def one_line_of(error: object) -> str:
    """The text of an error that is not ours, or any other text, on one line: servers and engines use several."""
    return " ".join(str(error).split())


def with_remedy(error: MirrorPumpError) -> str:
    """What happened and what to do, as sentences."""
    return ". ".join(part.rstrip(".") for part in (str(error), error.remedy) if part)


def about(name: str, text: str) -> str:
    """`text` with `name` and a colon in front, unless it begins with that name already."""
    return text if re.match(rf"{re.escape(name)}(?![\w.])", text) else f"{name}: {text}"


class ExpectedOutcome(Exception):
    """Base of what work comes to, raised for its caller, which expects it: neither an error nor a bug."""


class UsageError(MirrorPumpError):
    """The command line or the configuration is wrong. Nothing was attempted."""

    exit_code = 2


class Interrupted(MirrorPumpError):
    """The user pressed Ctrl-C. The message says what was completed; nothing is half done."""

    exit_code = 130


class TableError(MirrorPumpError):
    """One table cannot be mirrored (any longer), and its owner has to act. Other tables continue."""


class SourceError(MirrorPumpError):
    """The operator of Postgres has to act: a slot is missing, a setting is off, a permission is lacking."""


class ConnectionLost(SourceError):
    """The connection to Postgres was lost. Retried with back-off; fatal only when the retries are used up."""


class TransientRefusal(SourceError):
    """Postgres refused a statement for a reason that passes: a lock or object that others held, a deadlock, a lack of
    memory or disk space, a statement that another session cancelled, an object that was dropped while it was looked at.
    Retried."""


class UnsendableRow(ConnectionLost):
    """The server cannot print a row, which ends the stream on every attempt. The pump skips the row's transaction and
    copies again all tables that the transaction may have changed."""

    transaction: int = 0
    """LSN of the transaction's commit, once known."""
    message_end: int = 0
    """LSN after the logical message, if it is one that cannot be sent: it may be outside of any transaction."""


class PublicationChanged(ConnectionLost):
    """The publication was changed, so the stream may lack changes. The next session copies the tables again, or
    says what to do."""


class HistoryDiverged(SourceError):
    """The server's history is not the one that the mirror was published on: a promotion or a restore took away commits
    that the lake has shown, or the slot that continues from the frontier. `mirror-pump reconcile` heals that."""


class NotLeader(SourceError):
    """Another pump leads this database, or took over from this one, which must stop."""


class LakeError(MirrorPumpError):
    """Files or metadata of the lake cannot be read or written. The operator of the storage has to act."""


class CredentialsError(LakeError):
    """The storage refuses the credentials, or there are none. An operator who has them has to act. Retried: they may be
    renewed meanwhile."""


class FollowerError(MirrorPumpError):
    """Another catalog that is to show the mirrored tables cannot be reached, or refuses something. Its operator has to
    act. Retried; the mirror does not wait for it."""


class FollowerAway(FollowerError):
    """Another catalog does not answer, or fails itself: that says nothing about what it was asked."""


class FileMissing(LakeError):
    """A file of the lake that is referred to, or its directory, does not exist, although the storage answered.
    `lake.commit.presence` finds out whether that concerns one table or the whole storage."""

    def __init__(self, message: str, remedy: str = "", location: str = "") -> None:
        super().__init__(message, remedy)
        self.location = location
        """URI of the file."""


class FileDamaged(LakeError):
    """A file of the lake cannot be read although the storage gave it: it was cut off, or bytes of it changed."""

    def __init__(self, message: str, remedy: str = "", location: str = "") -> None:
        super().__init__(message, remedy)
        self.location = location
        """URI of the file."""


_HEAD_SUFFIXES = (".json", ".avro")
"""Of files without which nothing of a lake table can be read, nor committed on top: metadata, lists, manifests."""


def is_data_file(location: str) -> bool:
    """Whether a file of a lake table holds rows or deletes: it is no metadata, list or manifest."""
    return not location.endswith(_HEAD_SUFFIXES)


def repair_of(name: str, location: str, *, only_copy: bool) -> str:
    """What to do about a file that a live table has lost, or that is damaged. `name`: as an argument of a command.
    `only_copy`: rows have left its heap."""
    if not is_data_file(location):
        return copy_anew(name, only_copy=only_copy)
    if only_copy:
        return (
            "restore the file from a backup, under the same name: rows that left the heap may be nowhere else."
            f" `mirror-pump resync {name}` copies those again that the heap has"
        )
    return (
        f"copy the table again: `mirror-pump resync {name}`, while readers keep what they have; or restore the file"
        " from a backup, under the same name"
    )


def copy_anew(name: str, *, only_copy: bool) -> str:
    """What to do about a table that cannot go on from its lake table, since a file is lost or damaged. `name`: as an
    argument of a command."""
    if only_copy:
        return (
            "the lake had the only copy of rows that left Postgres: restore the file from a backup, under the same"
            " name, and the table can be read again as it was. To mirror what Postgres holds:"
            f" `mirror-pump unregister --keep-lake {name}`, then `mirror-pump register {name}`"
        )
    return (
        f"copy it into a new lake table: `mirror-pump unregister {name}`, then `mirror-pump register {name}`, with"
        " the options that it has (`mirror-pump export` prints them before). If its former content has to be read until"
        " then, restore the file from a backup first, under the same name"
    )


class ForeignTable(LakeError):
    """Another engine changed a lake table so that the mirror cannot continue it. That table fails; others continue."""


class StorageFull(LakeError):
    """There is no space for the lake's files, or for Spark's own. The owner of the storage has to make some.
    Retried."""


class TaskFailed(MirrorPumpError):
    """A Spark task, its worker or its executor failed. Retried; fatal when every attempt fails."""


class TaskRaised(TaskFailed):
    """A task's function raised what no code expects. Where it worked for one table, that table fails."""


class CommitConflict(LakeError):
    """Another writer moved the metadata pointer of an Iceberg table. The commit is rebased and retried."""


class OutcomeUnknown(MirrorPumpError):
    """The connection was lost during COMMIT, so only the database knows whether the commit succeeded. No file may be
    deleted until that is known."""
