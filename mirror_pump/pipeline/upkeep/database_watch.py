"""A thread that looks at the database again and again, and that no error ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psycopg

from mirror_pump.errors import SourceError
from mirror_pump.service_thread import ServiceThread
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.telemetry import get_logger

_STOP_GRACE = 1.0
"""Seconds that stopping waits for the thread. It may be connecting to a server that does not answer."""


def database_watch(
    name: str, dsn: str, application_name: str, look: Callable[[PgConnection], None], interval: float
) -> ServiceThread:
    """A thread that calls `look` with a new connection in autocommit mode, at once and then every `interval` seconds.

    It says nothing of a connection that cannot be made or is lost, since the pump itself reports that. It logs any
    other error. The next look is soon enough in both cases.
    """
    log = get_logger(name)

    def run() -> None:
        while thread.next_round():
            try:
                with (
                    suppress(SourceError, psycopg.Error),
                    connect(dsn, autocommit=True, application_name=application_name) as connection,
                ):
                    look(connection)
            except Exception as error:
                log.warning("the database could not be looked at", error=str(error), exc_info=True)
            thread.await_wake(interval)

    thread = ServiceThread(name, run, stop_within=_STOP_GRACE)
    return thread
