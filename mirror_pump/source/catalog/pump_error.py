"""Why the pump cannot go on, as the catalog has it (modak.mirror_slots.last_error).

Between two attempts a pump does not lead and has no connection. Only this row shows that it exists and what it is
waiting for. It is cleared by the next publish that moves the frontier (sql/queries/publish.sql), and by a session that
has caught up.
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
"""Seconds: the pump itself waits for this before it tries again."""
_LONGEST_TEXT = 4000
"""Characters of an error that the catalog keeps."""
_OVERDUE = timedelta(seconds=20)
"""How long after the time of its next attempt a pump that does not lead counts as gone: connecting takes a while."""


_CLEAR = "UPDATE modak.mirror_slots SET last_error = NULL WHERE slot_name = %s AND last_error IS NOT NULL"


@dataclass(frozen=True)
class PumpError:
    """The last error of a pump that has not been successful since."""

    at: datetime
    """When the last attempt failed."""
    since: datetime
    """When the first one did."""
    attempts: int
    error: str
    remedy: str
    retry_in: float | None
    """Seconds from `at` to the next attempt; None: the pump has stopped."""
    host: str
    pid: int

    def expects_retry(self, now: datetime) -> bool:
        """Whether the pump is about to try again, if nobody has killed it."""
        return self.retry_in is not None and now < self.at + timedelta(seconds=self.retry_in) + _OVERDUE


def pump_error(stored: Mapping[str, Any] | None) -> PumpError | None:
    """The value of the column."""
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
    """Stores the error of the pump that led last, with `epoch`. `failing_for`: seconds since its first failure.

    Raises SourceError or a driver's error when that is not possible within seconds, the database being down for one.
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
    """Says that the pump is successful again."""
    with source_errors("clearing the pump's last error"):
        connection.execute(_CLEAR, (slot,))


def _text(text: str) -> str:
    """Without secrets, as jsonb takes it: without characters that are none."""
    return redact(text).replace("\0", "").encode(errors="replace").decode()[:_LONGEST_TEXT]
