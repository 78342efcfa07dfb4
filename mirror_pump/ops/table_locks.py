"""Transactions that lock a table: with a time limit, and again after a pause, since others queue behind a waiting
request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg

from mirror_pump.errors import (
    ConnectionLost,
    ExpectedOutcome,
    MirrorPumpError,
    SourceError,
    TableError,
    TransientRefusal,
)
from mirror_pump.model import TableName
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect, source_errors
from sql import queries

_SQL = queries("pointers")

_LOCK_PATIENCE = 120.0
"""Seconds after which the tries for a table's lock end. Each try waits for at most `lock_timeout`."""
_OUTCOME_PATIENCE = 60.0
"""Seconds for which the server is asked what became of a COMMIT."""
_LOOKS = Backoff(0.05, 2.0)

_Result = TypeVar("_Result")


def locked_transaction(
    connection: PgConnection,
    settings: Settings,
    name: TableName | str,
    doing: str,
    work: Callable[[], _Result],
    files: WrittenFiles | None = None,
) -> _Result:
    """What `work` returns, in a transaction that locks the table `name`. `doing` completes "while ...". `files`: what
    was written for it, which stays if it lands.

    Raises TableError after _LOCK_PATIENCE seconds without its locks, and ConnectionLost, with `files.may_have_landed`
    if the server does not say what became of the COMMIT.
    """

    def attempt() -> _Result:
        if files is None:
            with source_errors(doing), connection.transaction():
                limit_lock(connection, settings)
                return work()
        try:
            with source_errors(doing), files.committing(connection, connection.cancel):
                limit_lock(connection, settings)
                result = work()
                ((transaction_id,),) = connection.execute(_SQL["transaction_id"]).fetchall()
        except ConnectionLost:
            status = _status(settings, transaction_id, doing) if files.may_have_landed else "aborted"
            files.may_have_landed = status != "aborted"
            if status != "committed":
                raise
            files.keep()
        return result

    return with_lock_retries(settings, name, attempt)


def _status(settings: Settings, transaction_id: str, doing: str) -> str:
    """`committed` or `aborted`: what became of a COMMIT without an answer. Another text if the server does not say."""

    def look() -> str:
        with connect(settings.require_dsn(), autocommit=True) as connection, source_errors(doing):
            ((status,),) = connection.execute(_SQL["transaction_status"], (transaction_id,)).fetchall()
        if status == "in progress":
            raise TransientRefusal(f"transaction {transaction_id} has not ended")
        return str(status)

    try:
        return _LOOKS.call(look, lambda error: isinstance(error, SourceError), seconds=_OUTCOME_PATIENCE)
    except SourceError as error:
        return str(error)


def limit_lock(connection: PgConnection, settings: Settings) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(settings.lock_timeout * 1000)}ms",))


def with_lock_retries(settings: Settings, name: TableName | str, attempt: Callable[[], _Result]) -> _Result:
    """What `attempt` returns once it gets its locks. Raises TableError after _LOCK_PATIENCE seconds without them."""
    backoff = Backoff(settings.lock_timeout, 4 * settings.lock_timeout, jitter=1.0)

    def locked_attempt() -> _Result:
        try:
            return attempt()
        except MirrorPumpError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise _LockBusy from error
            raise

    try:
        return backoff.call(locked_attempt, lambda error: isinstance(error, _LockBusy), seconds=_LOCK_PATIENCE)
    except _LockBusy as busy:
        raise TableError(
            f"{name} could not be locked within {_LOCK_PATIENCE:.0f} s: other sessions hold it",
            "See pg_locks for a long transaction that wrote to the table, wait for it or end it, and try again.",
        ) from busy


class _LockBusy(ExpectedOutcome):
    """The lock was not granted within lock_timeout."""
