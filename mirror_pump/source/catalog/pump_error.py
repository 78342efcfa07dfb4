"""The pump's last error, as stored in the catalog (modak.mirror_slots.last_error).

Between two attempts a pump does not lead and has no connection, so only this value shows that it exists and why it
waits. The next publish that moves the frontier clears it (sql/queries/publish.sql), and so does a session that has
caught up.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.runtime.telemetry import redact
from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, connect, source_errors, with_connect_timeout
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("leader")

_CONNECT_TIMEOUT = 3
"""Seconds. It is short, since the pump waits for this connection before it retries."""
_LONGEST_TEXT = 4000
"""Number of characters of an error that the catalog keeps."""
_OVERDUE = timedelta(seconds=20)
"""Time after its announced attempt until a pump that does not lead counts as dead, since connecting takes some
seconds."""


_CLEAR = f"UPDATE {SCHEMA}.mirror_slots SET last_error = NULL WHERE slot_name = %s AND last_error IS NOT NULL"


@dataclass(frozen=True)
class PumpError:
    """The last error of a pump that has not succeeded since."""

    at: datetime
    """When the last attempt failed."""
    since: datetime
    """When the first attempt failed."""
    attempts: int
    error: str
    remedy: str
    retry_in: float | None
    """Seconds from `at` to the next attempt; None if the pump has stopped."""
    host: str
    pid: int

    def expects_retry(self, now: datetime) -> bool:
        """Whether the pump will retry, unless it has been killed."""
        return self.retry_in is not None and now < self.at + timedelta(seconds=self.retry_in) + _OVERDUE


def pump_error(stored: Mapping[str, Any] | None) -> PumpError | None:
    """Parses the value of modak.mirror_slots.last_error."""
    if stored is None:
        return None
    moments = {name: datetime.fromisoformat(stored[name]) for name in ("at", "since")}
    return PumpError(**{name: stored[name] for name in PumpError.__dataclass_fields__} | moments)


def note_error(
    dsn: str,
    slot: str,
    epoch: int,
    *,
    error: str,
    remedy: str,
    attempts: int,
    failing_for: float,
    retry_in: float | None,
) -> None:
    """Stores the error of the pump that led last, with `epoch`. `failing_for` is the seconds since its first failure.

    Raises SourceError or an error of psycopg if that is not possible within seconds, for example because the database
    is down.
    """
    details = {
        "error": _text(error),
        "remedy": _text(remedy),
        "attempts": attempts,
        "retry_in": retry_in,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    patient = with_connect_timeout(dsn, _CONNECT_TIMEOUT)
    with (
        connect(patient, autocommit=True, application_name="mirror-pump-error") as connection,
        source_errors("noting the pump's error"),
    ):
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        connection.execute(
            _SQL["note_error"], {"slot": slot, "epoch": epoch, "failing_for": failing_for, "details": Jsonb(details)}
        )


class FailureRecord:
    """Counts one pump's consecutive failures. Failures at the same frontier count as one problem."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        self._frontier = Lsn(0)
        self._attempts = 0
        self._began = 0.0

    def failed(self, error: Exception, frontier: Lsn, epoch: int | None, retry_in: float | None) -> None:
        """Record a failed attempt at `frontier`. `retry_in`: seconds until the next attempt, None if there is none.

        Stores nothing for a pump that never led (`epoch` is None). Stores nothing either if the database cannot be
        reached: the write is retried for some seconds and then given up.
        """
        if frontier > self._frontier or not self._attempts:
            self._frontier, self._attempts, self._began = frontier, 0, time.monotonic()
        self._attempts += 1
        if epoch is None:
            return
        with suppress(SourceError, psycopg.Error):
            note_error(
                self._dsn,
                self._slot,
                epoch,
                error=str(error),
                remedy=str(getattr(error, "remedy", "")),
                attempts=self._attempts,
                failing_for=time.monotonic() - self._began,
                retry_in=retry_in,
            )


def clear_error(connection: PgConnection, slot: str) -> None:
    """Clears the error, once the pump has succeeded."""
    with source_errors("clearing the pump's last error"):
        connection.execute(_CLEAR, (slot,))


def _text(text: str) -> str:
    """The text without secrets, cut to its limit, and without characters that jsonb cannot store."""
    return redact(text).replace("\0", "").encode(errors="replace").decode()[:_LONGEST_TEXT]
