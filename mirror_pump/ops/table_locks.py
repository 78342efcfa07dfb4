"""Requests a table's locks with a time limit and retries after a pause, since others queue behind a waiting request."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from mirror_pump.errors import ExpectedOutcome, MirrorPumpError, TableError
from mirror_pump.model import TableName
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection

_LOCK_PATIENCE = 120.0
"""Seconds after which the tries for a table's lock end. Each try waits for at most `lock_timeout`."""


def limit_lock(connection: PgConnection, settings: Settings) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(settings.lock_timeout * 1000)}ms",))


def with_lock_retries(settings: Settings, name: TableName, attempt: Callable[[], None]) -> None:
    """Run `attempt` until it gets its locks. Raises TableError after _LOCK_PATIENCE seconds without them."""
    backoff = Backoff(settings.lock_timeout, 4 * settings.lock_timeout, jitter=1.0)

    def locked_attempt() -> None:
        try:
            attempt()
        except MirrorPumpError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise _LockBusy from error
            raise

    try:
        backoff.call(locked_attempt, lambda error: isinstance(error, _LockBusy), seconds=_LOCK_PATIENCE)
    except _LockBusy as busy:
        raise TableError(
            f"{name} could not be locked within {_LOCK_PATIENCE:.0f} s: other sessions hold it",
            "See pg_locks for a long transaction that wrote to the table, wait for it or end it, and try again.",
        ) from busy


class _LockBusy(ExpectedOutcome):
    """The lock was not granted within lock_timeout."""
