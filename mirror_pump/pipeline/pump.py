"""The pump: sessions one after the other, with a pause after each error that time may cure."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass
from queue import SimpleQueue

import psycopg

from mirror_pump.config import Settings
from mirror_pump.engine.runner import SparkTaskRunner, TaskRunner
from mirror_pump.errors import CommitConflict, ConnectionLost, LakeError, OutcomeUnknown, TaskFailed
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.pipeline.session import Abandoned, Goal, PumpSession, Totals
from mirror_pump.pipeline.steps import Observer, Step, unobserved
from mirror_pump.pipeline.work import StopRequested, Work
from mirror_pump.source.connect import connect
from mirror_pump.source.leader import refuse_if_led
from sql import queries

_SQL = queries("pump")

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

    def request_stop(self) -> None:
        """Finish or abandon the batch under way, and return from `run` within seconds. Safe in a signal handler."""
        self._stop.set()
        self._inbox.put(StopRequested())

    def run(self, until: Lsn | None = None, once: bool = False, copies: bool = False) -> PumpResult:
        """Mirror until F reaches `until` (`once`: the end of WAL at the start), and with `copies` or `once` until no
        table is being copied any more; for ever without any of them. Raises NotLeader while another pump leads."""
        with connect(self._settings.require_dsn(), autocommit=True) as connection:
            # Before Spark starts, which takes seconds; the lead itself is taken by each session.
            refuse_if_led(connection, self._settings.slot)
            if once:
                row = connection.execute(_SQL["wal_end"]).fetchone()
                assert row is not None
                until = Lsn(row[0])
        goal = Goal(until, copies or once)
        totals = Totals(Lsn(0))
        storage = StorageOptions(properties=self._settings.storage_properties, fsync=self._settings.storage_fsync)
        if self._runner is not None:
            self._sessions(goal, totals, storage, self._runner)
        else:
            own = SparkTaskRunner.start(self._settings.master, os.cpu_count() or 1, self._settings.copy_workers)
            try:
                self._sessions(goal, totals, storage, own)
            finally:
                own.close()
        reason = "stopped" if self._stop.is_set() else "goal"
        return PumpResult(totals.frontier, totals.commits, totals.changes, reason)

    def _sessions(self, goal: Goal, totals: Totals, storage: StorageOptions, runner: TaskRunner) -> None:
        pause, broken_tasks = _FIRST_PAUSE, 0
        while not self._stop.is_set():
            commits = totals.commits
            try:
                self._inbox = SimpleQueue()
                session = PumpSession(
                    self._settings, storage, runner, self._observer, goal, totals, self._inbox, self._stop.is_set
                )
                try:
                    session.run()
                finally:
                    session.close()
                return
            except Abandoned:
                return
            except (
                ConnectionLost,
                OutcomeUnknown,
                CommitConflict,
                LakeError,
                TaskFailed,
                psycopg.OperationalError,
                psycopg.InterfaceError,
            ) as error:
                if totals.commits > commits:
                    pause, broken_tasks = _FIRST_PAUSE, 0
                broken_tasks += isinstance(error, TaskFailed)
                if broken_tasks >= _BROKEN_TASKS:
                    raise
                self._observer(Step.RETRYING, error=str(error), pause=round(pause, 1))
                self._stop.wait(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, self._settings.reconnect_backoff_max)
