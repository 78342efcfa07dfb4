"""Waits until the frontier has passed a WAL position, and asks an idle pump to advance the frontier to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mirror_pump.errors import MirrorPumpError, SourceError
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.ops.status.alerts import failing
from mirror_pump.ops.status.slot_state import slot_error
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pump_channel import notify_pump
from mirror_pump.source.catalog.pump_error import PumpError, pump_error
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.slot import wal_end
from sql import queries

_SQL = queries("status")

POLL_INTERVAL = 0.05
"""Seconds between two polls. A poll is one row by its key, and the interval is short compared with a commit."""
_FIRST_POLL = 0.005
"""Seconds between the first two polls. The interval doubles up to POLL_INTERVAL: an idle pump answers within
milliseconds."""

ASK_INTERVAL = 2.0
"""Seconds between two notifications. They are repeated for a pump that starts during the wait, and kept rare because
each one writes WAL."""
_FIRST_ASK = 0.25
"""Seconds between the first two notifications. The interval doubles up to ASK_INTERVAL. It starts short because a pump
that starts during a wait mostly does so at its beginning."""


@dataclass(frozen=True)
class TableBehind:
    """A table whose readers do not see everything up to the target: a row of modak.mirror_behind()."""

    table_name: str
    state: str
    frontier: str | None
    """What its readers see, as PostgreSQL writes positions. None if it has never had readers."""
    awaited: bool
    """Whether it gets there by itself. False if it has failed or waits for its owner, and for a first copy."""

    def __str__(self) -> str:
        return f"{self.table_name} ({self.state}, readable as of {self.frontier or 'never'})"


@dataclass(frozen=True)
class WaitResult:
    """The result of a wait."""

    target: Lsn
    frontier: Lsn
    """The frontier at the last poll."""
    error: MirrorPumpError | None
    """Why the frontier did not reach the target in time; None if it did."""
    streams: bool = True
    """False: the mirror has no stream, so there is nothing to wait for, wherever the frontier is."""
    behind: tuple[TableBehind, ...] = ()
    """The tables that are not readable at the target."""


def wait_for(settings: Settings, target: Lsn | None, timeout: float, *, copied_again: bool = False) -> WaitResult:
    """Wait until the frontier of every live table has passed `target`, for at most `timeout` seconds.

    If `target` is None, wait for the present WAL position. `copied_again`: whether tables that are copied again or
    filled are waited for as well; without it, only those that are copied again because the slot was lost. Tables that
    have failed are not waited for. If no pump can resume from the slot, return at once with the error; without an error
    if the mirror has no stream. Raises SourceError if a query fails.
    """
    deadline = time.monotonic() + timeout
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-wait") as connection:
        return _wait(connection, settings, target, timeout, deadline, copied_again=copied_again)


def wait_on(
    connection: PgConnection, settings: Settings, target: Lsn, timeout: float, poll: float = POLL_INTERVAL
) -> WaitResult:
    """Do as `wait_for`, over the caller's connection, which is in autocommit mode. `poll`: the longest time in seconds
    between two polls."""
    return _wait(connection, settings, target, timeout, time.monotonic() + timeout, poll)


def _wait(
    connection: PgConnection,
    settings: Settings,
    target: Lsn | None,
    timeout: float,
    deadline: float,
    poll: float = POLL_INTERVAL,
    *,
    copied_again: bool = False,
) -> WaitResult:
    with source_errors("waiting for the frontier"):
        slot = complete_from(connection, settings).slot
        if target is None:
            # This position may not be flushed yet. The NOTIFY below flushes it.
            target = wal_end(connection)
        ask_at = time.monotonic()
        ask_pause, pause = _FIRST_ASK, _FIRST_POLL
        while True:
            row = _frontier(connection, slot, target)
            frontier, active, error = row.frontier, bool(row.active), row.error
            behind = tuple(TableBehind(**table) for table in row.behind)
            away = tuple(table for table in behind if table.awaited) if copied_again else ()
            if (frontier >= target and not away and row.accepted_server) or not row.streams:
                return WaitResult(target, frontier, None, row.streams, behind)
            now = time.monotonic()
            if now >= ask_at and not active and (lost := slot_error(connection, slot)) is not None:
                # The frontier will never reach the target.
                return WaitResult(target, frontier, lost)
            if now >= deadline:
                timed_out = _timed_out(target, frontier, timeout, active, error, away)
                return WaitResult(target, frontier, timed_out, behind=behind)
            if now >= ask_at:
                ask_at = now + ask_pause
                ask_pause = min(2 * ask_pause, ASK_INTERVAL)
                notify_pump(connection, format_lsn(target))
            pause = _await_applied(connection, slot, target, min(ask_at, deadline), pause, poll)


def _await_applied(
    connection: PgConnection, slot: str, target: Lsn, until: float, pause: float, longest_pause: float
) -> float:
    """Sleep for `pause`, and on until the stream has passed `target` or the time has come. Return the next pause.
    Before that no table is readable at the target, and to look at all of them would cost much more."""
    while True:
        time.sleep(max(0.0, min(pause, until - time.monotonic())))
        pause = min(2 * pause, longest_pause)
        if time.monotonic() >= until:
            return pause
        row = connection.execute(_SQL["applied"], {"slot": slot}).fetchone()
        if row is None or row[0] >= target:
            return pause


def _frontier(connection: PgConnection, slot: str, target: Lsn) -> _FrontierRow:
    row = fetch_row(connection, _FrontierRow, _SQL["frontier"], {"slot": slot, "target": target})
    if row is None:
        raise SourceError(f"the catalog no longer knows slot {slot}", "run `mirror-pump init` again")
    return row


@dataclass(frozen=True)
class _FrontierRow:
    """A row of the query `frontier`."""

    applied: Lsn
    promised: Lsn | None
    """The lowest frontier of a table that counts; None if there is none."""
    behind: list[dict[str, Any]]
    """The fields of TableBehind."""
    active: bool | None
    """Whether a process reads the slot. None if the slot is gone."""
    streams: bool
    last_error: dict[str, Any] | None
    accepted_server: bool
    """Whether the mirror continues on this server. On another one positions say nothing."""
    now: datetime

    @property
    def frontier(self) -> Lsn:
        return self.applied if self.promised is None else min(self.applied, self.promised)

    @property
    def error(self) -> PumpError | None:
        """The error of a pump that is about to retry, if any."""
        error = pump_error(self.last_error)
        return error if error is not None and error.expects_retry(self.now) else None


def _timed_out(
    target: Lsn, frontier: Lsn, timeout: float, active: bool, error: PumpError | None, away: Sequence[TableBehind]
) -> SourceError:
    behind = target - frontier
    message = (
        f"frontier {format_lsn(frontier)} has not passed {format_lsn(target)} within {timeout:g} s"
        f" ({behind} bytes behind)"
    )
    if behind <= 0:
        message = (
            f"the stream has passed {format_lsn(target)}, but these tables are not readable there within {timeout:g} s:"
            f" {', '.join(map(str, away))}"
        )
    if error is not None:
        return SourceError(f"{message}: {failing(error)}", error.remedy)
    return SourceError(
        message,
        "the pump is running: give it more time, or see `mirror-pump status`"
        if active
        else "no pump reads the slot: start one with `mirror-pump run`",
    )
