"""Errors, by who has to act. Each says what happened, to which object, and what to do about it."""

from __future__ import annotations

import re


class MirrorPumpError(Exception):
    """Base. `str()` is what happened and to what; `remedy` is what to do."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def about(name: str, text: str) -> str:
    """`text`, beginning with the name of what it is about: once, also if it begins with it already."""
    return text if re.match(rf"{re.escape(name)}(?![\w.])", text) else f"{name}: {text}"


class UsageError(MirrorPumpError):
    """The command line or the configuration is wrong: nothing was tried."""

    exit_code = 2


class Interrupted(MirrorPumpError):
    """Somebody pressed Ctrl-C. The message says what stands; nothing is half done."""

    exit_code = 130


class TableError(MirrorPumpError):
    """One table cannot be mirrored (further): the owner of the table acts. Other tables go on."""


class SourceError(MirrorPumpError):
    """The Postgres side needs its operator: slot missing, setting off, permission lacking."""


class ConnectionLost(SourceError):
    """Postgres went away. Retried with back-off; fatal only when retries are used up."""


class UnsendableRow(ConnectionLost):
    """A row that the server cannot print ended the stream, and would each time: its transaction is passed over, and
    what it may have changed is copied again."""

    transaction: int = 0
    """LSN of its commit, once known."""
    message_end: int = 0
    """LSN behind it, if it is a logical message, which may stand outside of any transaction."""


class PublicationChanged(ConnectionLost):
    """Somebody changed what is published: the stream may lack changes. Tables are copied again by the next session, or
    it says what to do."""


class NotLeader(SourceError):
    """Another pump leads this database, or took over from us: this one must stop."""


class LakeError(MirrorPumpError):
    """Files or metadata of the lake cannot be read or written: the operator of the storage acts."""


class ForeignTable(LakeError):
    """Another engine made of a lake table what the mirror cannot go on with: that table is set aside, others go on."""


class StorageFull(LakeError):
    """There is no room for the lake's files, or for Spark's own: whoever owns the storage makes some. Tried again."""


class TaskFailed(MirrorPumpError):
    """A Spark task, its worker or its executor broke. Retried, since machines do; fatal when it happens every time."""


class CommitConflict(LakeError):
    """Someone else moved an Iceberg table's pointer: rebase and retry."""


class OutcomeUnknown(MirrorPumpError):
    """The connection was lost during COMMIT: landed or not, the database knows. No file may be deleted until then."""
