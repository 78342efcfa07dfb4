"""The pump: sessions one after the other, with a pause after each error that time may cure."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

import psycopg

from mirror_pump.config import Settings
from mirror_pump.engine.runner import SparkTaskRunner, TaskRunner
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    LakeError,
    MirrorPumpError,
    NotLeader,
    OutcomeUnknown,
    TaskFailed,
)
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.demand import Goal
from mirror_pump.pipeline.failing import FailureRecord
from mirror_pump.pipeline.index_builder import INDEX_TASKS
from mirror_pump.pipeline.key_indexes import KeyIndexes
from mirror_pump.pipeline.neglect import NeglectWatch
from mirror_pump.pipeline.session import Abandoned, PumpSession, Totals
from mirror_pump.pipeline.steps import Observer, Step, unobserved
from mirror_pump.pipeline.upkeep import upkeep_tasks
from mirror_pump.pipeline.work import StopRequested, Work
from mirror_pump.source.connect import connect
from mirror_pump.source.leader import Leader, refuse_if_led
from mirror_pump.source.slot import wal_end
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
        self, settings: Settings, *, observer: Observer | None = None, runner: TaskRunner | None = None
    ) -> None:
        """Without `runner`, the pump starts a Spark of its own and ends it; with one, it uses that and leaves it."""
        self._settings = settings
        self._runner = runner
        self._observer = observer or unobserved
        self._stop = threading.Event()
        self._inbox: SimpleQueue[Work] = SimpleQueue()
        self._failures = FailureRecord(settings.require_dsn(), settings.slot)

    def request_stop(self) -> None:
        """Finish or abandon the batch under way, and return from `run` within seconds. Safe in a signal handler."""
        self._stop.set()
        self._inbox.put(StopRequested())

    def submit(self, work: Work) -> None:
        """Hand work to the present session's loop. Safe in any thread; what a session leaves is not done."""
        self._inbox.put(work)

    def run(self, until: Lsn | None = None, once: bool = False, copies: bool = False) -> PumpResult:
        """Mirror until F reaches `until` (`once`: the end of WAL at the start), and with `copies` or `once` until no
        table is being copied any more; for ever without any of them. Raises NotLeader while another pump leads."""
        totals = Totals(Lsn(0))
        # Before Spark starts, which takes seconds; the lead itself is taken by each session.
        end = self._persist(self._wal_end_unless_led, totals)
        goal = Goal(end if once else until, copies or once)
        storage = StorageOptions(properties=self._settings.storage_properties, fsync=self._settings.storage_fsync)
        if self._runner is not None:
            self._sessions(goal, totals, storage, self._runner)
        else:
            cores = os.cpu_count() or 1
            others = self._settings.copy_workers + upkeep_tasks(cores) + INDEX_TASKS
            own = SparkTaskRunner.start(self._settings.master, cores, others)
            try:
                self._sessions(goal, totals, storage, own)
            finally:
                own.close()
        reason = "stopped" if self._stop.is_set() else "goal"
        return PumpResult(totals.frontier, totals.commits, totals.changes, reason)

    def _sessions(self, goal: Goal, totals: Totals, storage: StorageOptions, runner: TaskRunner) -> None:
        indexes = self._indexes = KeyIndexes(self._settings.index_memory, storage)

        def live() -> None:
            again = True
            leader: Leader | None = None
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

    def _persist(self, attempt: Callable[[], Outcome], totals: Totals) -> Outcome | None:
        """What `attempt` returns, tried again after errors that time may cure; None once the stop is requested."""
        pause, broken_tasks = _FIRST_PAUSE, 0
        while not self._stop.is_set():
            commits = totals.commits
            try:
                return attempt()
            except _CURABLE as error:
                if totals.commits > commits:
                    pause, broken_tasks = _FIRST_PAUSE, 0
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

    def _wal_end_unless_led(self) -> Lsn:
        with connect(self._settings.require_dsn(), autocommit=True) as connection:
            refuse_if_led(connection, self._settings.slot)
            return wal_end(connection)
