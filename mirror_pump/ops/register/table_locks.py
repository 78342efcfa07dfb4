"""Asks for a table's locks with a time limit, and again after a pause: others queue behind a waiting lock request."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from mirror_pump.config import Settings
from mirror_pump.errors import MirrorPumpError, TableError
from mirror_pump.model import TableName
from mirror_pump.source.connect import PgConnection

_LOCK_PATIENCE = 120.0
"""Seconds in all that a table's lock is asked for, in tries of `lock_timeout`."""


def limit_lock(connection: PgConnection, settings: Settings) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(settings.lock_timeout * 1000)}ms",))


def with_lock_retries(settings: Settings, name: TableName, attempt: Callable[[], None]) -> None:
    """Run `attempt` until it gets its locks; TableError when the patience is over."""
    tries = Retrying(
        stop=stop_after_delay(_LOCK_PATIENCE),
        wait=wait_random_exponential(multiplier=settings.lock_timeout, max=4 * settings.lock_timeout),
        retry=retry_if_exception_type(_LockBusy),
        reraise=True,
    )
    try:
        for one in tries:
            with one:
                try:
                    attempt()
                except MirrorPumpError as error:
                    if isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                        raise _LockBusy from error
                    raise
    except _LockBusy as busy:
        raise TableError(
            f"{name} could not be locked within {_LOCK_PATIENCE:.0f} s: other sessions hold it",
            "See pg_locks for a long transaction that wrote to the table, wait for it or end it, and try again.",
        ) from busy


class _LockBusy(Exception):
    """The lock was not granted within lock_timeout."""
