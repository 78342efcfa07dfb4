"""The pump's last error, as stored in the catalog (modak.mirror_slots.last_error).

Between two attempts a pump does not lead and has no connection, so only this value shows that it exists and why it
waits. The next publish that moves the frontier clears it (sql/queries/publish.sql), and so does a session that has
caught up.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import conninfo
from psycopg.types.json import Jsonb

from mirror_pump.source.connect import LOCK_TIMEOUT, PgConnection, connect, source_errors
from mirror_pump.telemetry import redact
from sql import queries

_SQL = queries("leader")

_CONNECT_TIMEOUT = 3
"""Seconds. It is short, since the pump waits for this connection before it retries."""
_LONGEST_TEXT = 4000
"""Number of characters of an error that the catalog keeps."""
_OVERDUE = timedelta(seconds=20)
"""Time after its announced attempt until a pump that does not lead counts as dead, since connecting takes some
seconds."""


_CLEAR = "UPDATE modak.mirror_slots SET last_error = NULL WHERE slot_name = %s AND last_error IS NOT NULL"


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
    patient = conninfo.make_conninfo(dsn, connect_timeout=_CONNECT_TIMEOUT)
    with (
        connect(patient, autocommit=True, application_name="mirror-pump-error") as connection,
        source_errors("noting the pump's error"),
    ):
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (LOCK_TIMEOUT,))
        connection.execute(
            _SQL["note_error"], {"slot": slot, "epoch": epoch, "failing_for": failing_for, "details": Jsonb(details)}
        )


def clear_error(connection: PgConnection, slot: str) -> None:
    """Clears the error, once the pump has succeeded."""
    with source_errors("clearing the pump's last error"):
        connection.execute(_CLEAR, (slot,))


def _text(text: str) -> str:
    """The text without secrets, cut to its limit, and without characters that jsonb cannot store."""
    return redact(text).replace("\0", "").encode(errors="replace").decode()[:_LONGEST_TEXT]
