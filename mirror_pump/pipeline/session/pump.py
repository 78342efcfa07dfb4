"""The pump: sessions one after the other, with a pause after each error that time may cure."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

import psycopg

from mirror_pump.config import Settings
from mirror_pump.engine.runner import SparkTaskRunner, TaskRunner
from mirror_pump.engine.session import end_java
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    LakeError,
    MirrorPumpError,
    NotLeader,
    OutcomeUnknown,
    TaskFailed,
)
from mirror_pump.interrupts import deferred_interrupt
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.flow.events import Event, StopRequested
from mirror_pump.pipeline.flow.steps import Observer, Step, unobserved
from mirror_pump.pipeline.key_index.index_builder import INDEX_TASKS
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.session.failure_record import FailureRecord
from mirror_pump.pipeline.session.frontier_scheduler import Goal
from mirror_pump.pipeline.session.lead import take_lead
from mirror_pump.pipeline.session.session import Abandoned, PumpSession, RunState
from mirror_pump.pipeline.upkeep.neglect_watch import NeglectWatch
from mirror_pump.pipeline.upkeep.upkeep_threads import upkeep_tasks
from mirror_pump.source.connect import connect
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import wal_end
from sql import queries

_SQL = queries("pump")

Outcome = TypeVar("Outcome")

_CURABLE = (
    ConnectionLost,
    OutcomeUnknown,
    CommitConflict,
    LakeError,
    TaskFailed,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)
"""Errors after which the pump goes back to what is published and tries again."""

_BROKEN_TASKS = 8
"""Failed tasks without a commit in between after which it is not the machine: somebody has to look."""
_FIRST_PAUSE = 0.2
"""Seconds before the first new try; doubles up to `reconnect_backoff_max`."""


@dataclass(frozen=True)
class PumpResult:
    """How a run ended."""

    frontier: Lsn
    """F at the end."""
    commits: int
    """Publish transactions."""
    changes: int
    """Row changes applied."""
    reason: str
    """`goal` or `stopped`."""


class Pump:
    """Runs until its goal is reached or a stop is requested. Raises what only a person can mend."""

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None = None,
        runner: TaskRunner | None = None,
        while_leading: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Without `runner`, the pump starts a Spark of its own when it leads, and ends it; with one, it uses that and
        leaves it. What `while_leading` makes is entered when the pump leads, and left when it does not any more."""
        self._settings = settings
        self._runner = runner
        self._while_leading = while_leading
        self._observer = observer or unobserved
        self._stop = threading.Event()
        self._at_work = False
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._failures = FailureRecord(settings.require_dsn(), settings.slot)

    def request_stop(self) -> None:
        """Finish or abandon the batch under way, and return from `run` within seconds. Safe in a signal handler."""
        self._stop.set()
        self._inbox.put(StopRequested())

    @property
    def at_work(self) -> bool:
        """Whether there is something that a stop has to end in order. While the server is waited for and Spark starts,
        `run` may as well be left by an exception of a signal handler's."""
        return self._at_work

    def submit(self, work: Event) -> None:
        """Hand work to the present session's loop. Safe in any thread; what a session leaves is not done."""
        self._inbox.put(work)

    def run(
        self, until: Lsn | None = None, once: bool = False, copies: bool = False, *, standby: bool = False
    ) -> PumpResult:
        """Mirror until F reaches `until` (`once`: the end of WAL at the start), and with `copies` or `once` until no
        table is being copied any more; for ever without any of them. Raises KeyboardInterrupt, once everything has
        ended in order, if that is what Ctrl-C does in this process.

        While another pump leads, raises NotLeader. A `standby` waits for its turn instead, without a Spark, or until
        the other one has reached the goal; and waits again if it loses the lead.
        """
        totals = RunState(Lsn(0))
        end = self._persist(self._wal_end, totals) if once else None
        goal = Goal(end if once else until, copies or once)

        def await_turn() -> Leader | None:
            return take_lead(self._settings, goal, self._observer, self._stop, totals, standby=standby)

        # Before Spark starts, which takes seconds and memory: of two pumps that start together one has it for nothing.
        while (leader := self._persist(await_turn, totals)) is not None:
            try:
                self._lead(leader, goal, totals)
                break
            except NotLeader as error:
                if not standby:
                    raise
                self._observer(Step.LEAD_LOST, error=str(error))
                if self._runner is None:
                    end_java()
        reason = "stopped" if self._stop.is_set() else "goal"
        return PumpResult(totals.frontier, totals.commits, totals.changes, reason)

    def _lead(self, leader: Leader, goal: Goal, totals: RunState) -> None:
        """Lead until the goal is reached or the stop requested; lets go of the lead. Raises NotLeader once another pump
        has it."""
        storage = StorageOptions(properties=self._settings.storage_properties, fsync=self._settings.storage_fsync)
        try:
            with self._while_leading():
                if self._runner is not None:
                    self._sessions(leader, goal, totals, storage, self._runner)
                    return
                cores = os.cpu_count() or 1
                others = self._settings.copy_workers + upkeep_tasks(cores) + INDEX_TASKS
                own = SparkTaskRunner.start(self._settings.master, cores, others)
                try:
                    self._sessions(leader, goal, totals, storage, own)
                finally:
                    own.close()
        finally:
            # Sessions let go of it, if it came to one.
            leader.release()

    def _sessions(
        self, first: Leader, goal: Goal, totals: RunState, storage: StorageOptions, runner: TaskRunner
    ) -> None:
        with deferred_interrupt(self.request_stop):
            self._at_work = True
            self._run_sessions(first, goal, totals, storage, runner)

    def _run_sessions(
        self, first: Leader, goal: Goal, totals: RunState, storage: StorageOptions, runner: TaskRunner
    ) -> None:
        indexes = self._indexes = KeyIndexes(self._settings.index_memory, storage)
        leads = [first]

        def live() -> None:
            again = True
            # A session that ended by an error let go of its lead: the next one takes it anew.
            leader = leads.pop() if leads else None
            if leader is not None:
                # Spark took its time to start.
                leader.check()
            while again and not self._stop.is_set():
                self._inbox = SimpleQueue()
                session = PumpSession(
                    self._settings,
                    storage,
                    runner,
                    self._observer,
                    goal,
                    totals,
                    self._inbox,
                    indexes,
                    self._stop.is_set,
                    leader,
                )
                try:
                    again = session.run()
                    leader = session.keep_lead() if again else None
                finally:
                    session.close()
            if leader is not None:
                leader.release()

        watch = NeglectWatch(self._settings.require_dsn(), self._settings.slot, self._observer)
        try:
            with watch, suppress(Abandoned):
                self._persist(live, totals)
        except NotLeader:
            # The one that leads has the word.
            raise
        except MirrorPumpError as error:
            self._failures.failed(error, totals.frontier, totals.epoch, retry_in=None)
            raise

    def _persist(self, attempt: Callable[[], Outcome], totals: RunState) -> Outcome | None:
        """What `attempt` returns, tried again after errors that time may cure; None once the stop is requested."""
        pause, broken_tasks = _FIRST_PAUSE, 0
        while not self._stop.is_set():
            commits, began = totals.commits, time.monotonic()
            try:
                return attempt()
            except _CURABLE as error:
                if totals.commits > commits:
                    pause, broken_tasks = _FIRST_PAUSE, 0
                elif time.monotonic() - began > self._settings.reconnect_backoff_max:
                    # A standby, or a pump without work, that has been well since the last error.
                    pause = _FIRST_PAUSE
                broken_tasks += isinstance(error, TaskFailed)
                if broken_tasks >= _BROKEN_TASKS:
                    raise
                remedy = getattr(error, "remedy", "")
                self._observer(Step.RETRYING, error=str(error), remedy=remedy, pause=round(pause, 1))
                due = time.monotonic() + pause * random.uniform(0.5, 1.0)
                self._failures.failed(error, totals.frontier, totals.epoch, retry_in=pause)
                self._stop.wait(max(0.0, due - time.monotonic()))
                pause = min(pause * 2, self._settings.reconnect_backoff_max)
        return None

    def _wal_end(self) -> Lsn:
        with connect(self._settings.require_dsn(), autocommit=True) as connection:
            return wal_end(connection)
