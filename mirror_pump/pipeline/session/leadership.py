"""Acquires the leadership of a mirror: at once, or as a standby after the current leader has ended."""

from __future__ import annotations

import threading
import time

from mirror_pump.errors import NotLeader
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.session.frontier_scheduler import Goal
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pump_channel import notify_pump
from mirror_pump.source.connect import source_errors
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.standby import Led, Standby
from sql import queries

_SQL = queries("pump")

_POLL_INTERVAL = 0.5
"""Seconds between checks for a leader: two small queries a second let a standby take over within a second."""
_ASK_INTERVAL = 2.0
"""Seconds between two requests to the leader to publish the frontier of this pump's goal. Each request writes WAL."""


def acquire_leadership(
    settings: Settings, goal: Goal, observer: Observer, stop: threading.Event, run_state: RunState, *, standby: bool
) -> Leader | None:
    """Acquire the leadership. A `standby` waits until no other pump leads.

    Returns None if the stop was requested first, or if the leading pump has reached the goal. Raises NotLeader without
    `standby` if another pump leads. Raises SourceError, ConnectionLost.
    """
    dsn, slot = settings.require_dsn(), settings.slot
    try:
        leader = Leader.acquire(dsn, slot, run_state.epoch)
    except NotLeader:
        if not standby:
            raise
        with Standby(dsn, slot) as waiting:
            waited = _wait(waiting, settings, goal, observer, stop, run_state)
        if waited is None:
            return None
        leader = waited
    run_state.epoch = leader.epoch
    observer(Step.LEADING, epoch=leader.epoch)
    return leader


def _wait(
    standby: Standby, settings: Settings, goal: Goal, observer: Observer, stop: threading.Event, run_state: RunState
) -> Leader | None:
    slot = settings.slot
    reported_epoch: int | None = None
    ask_at = time.monotonic()
    while not stop.is_set():
        answer = standby.ask()
        if isinstance(answer, Leader):
            return answer
        run_state.frontier = answer.frontier
        if answer.epoch != reported_epoch:
            reported_epoch = answer.epoch
            observer(Step.STANDBY, leader=answer.leader, frontier=answer.frontier)
        if answer.silent_for >= settings.limits.leader_silence and standby.depose():
            observer(Step.LEADER_DEPOSED, leader=answer.leader, seconds=round(answer.silent_for, 1))
            continue
        if not goal.endless:
            if _reached(standby, slot, goal, answer):
                return None
            if goal.until is not None and time.monotonic() >= ask_at:
                ask_at = time.monotonic() + _ASK_INTERVAL
                with source_errors("asking the leader for the frontier"):
                    notify_pump(standby.connection, format_lsn(Lsn(goal.until)))
        stop.wait(_POLL_INTERVAL)
    return None


def _reached(standby: Standby, slot: str, goal: Goal, led: Led) -> bool:
    """Whether the leader has reached this pump's goal."""
    if goal.until is not None and led.frontier < goal.until:
        return False
    if not goal.copies:
        return True
    with source_errors("looking for tables that are being copied"):
        row = standby.connection.execute(_SQL["copying"], {"slot": slot}).fetchone()
    return row == (False,)
