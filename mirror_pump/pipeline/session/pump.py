"""The pump: runs one session after another, with a pause after each transient error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TypeVar

import psycopg

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.engine.spark_runtime.cluster import check_cluster
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner, TaskRunner
from mirror_pump.engine.spark_runtime.session import end_java
from mirror_pump.errors import (
    CommitConflict,
    ConnectionLost,
    LakeError,
    MirrorPumpError,
    NotLeader,
    OutcomeUnknown,
    SourceError,
    TaskFailed,
    TransientRefusal,
)
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.model import Lsn
from mirror_pump.pipeline.flow.events import Event, StopRequested, ThreadFailed
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Observer, Step, unobserved
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.session.batch_landing import Abandoned
from mirror_pump.pipeline.session.frontier_scheduler import Goal
from mirror_pump.pipeline.session.leadership import acquire_leadership
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.session import PumpSession
from mirror_pump.pipeline.session.stream_start import check_start
from mirror_pump.pipeline.stream.batch_pace import FileCeiling
from mirror_pump.pipeline.upkeep.wal_guard import WalGuard
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.interrupts import deferred_interrupt
from mirror_pump.runtime.memory import collect_seldom, return_freed_memory
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.lock_holders import naming_lock_holders
from mirror_pump.source.catalog.pump_error import FailureRecord
from mirror_pump.source.connect import as_source_error, connect
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import wal_end

Result = TypeVar("Result")

_CURABLE = (
    ConnectionLost,
    TransientRefusal,
    OutcomeUnknown,
    CommitConflict,
    LakeError,
    TaskFailed,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)
"""Transient errors: the pump goes back to what is published and tries again. So it does after other errors of psycopg
that stand for one of these (`as_source_error`)."""

_BROKEN_TASKS = 8
"""Number of failed tasks without a commit in between after which the pump gives up: the cause is not transient, and an
operator has to look."""
_REMOTE_SEGMENTS = 4
"""Segments at a time for each core, if their files go to an object store."""
_BUG_REMEDY = "report this with the log, and start the pump again: it goes on from what is published"
_SHORT_WORK_SECONDS = 10.0
"""Seconds after which copies are worth Spark's start, which takes about as long on two busy cores."""
_FIRST_PAUSE = 0.2
"""Seconds before the first retry. Further pauses double up to `reconnect_backoff_max`."""
_JITTER = 0.5


@dataclass(frozen=True)
class PumpResult:
    """How a run ended."""

    frontier: Lsn
    """The frontier at the end."""
    commits: int
    """Number of publish transactions."""
    changes: int
    """Number of row changes applied."""
    reason: str
    """`goal` or `stopped`."""


class Pump:
    """Runs until its goal is reached or a stop is requested. Raises errors that need an operator."""

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None = None,
        runner: TaskRunner | None = None,
        while_leading: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Without `runner`, the pump starts its own Spark when it becomes the leader, and ends it afterwards. With
        `runner`, the pump uses it and does not close it. The pump enters the context manager that `while_leading`
        returns when it becomes the leader, and leaves it when it no longer leads."""
        self._settings = settings
        self._runner = runner
        self._while_leading = while_leading
        self._observer = observer or unobserved
        self._stop = threading.Event()
        self._at_work = False
        self._spark_error: Exception | None = None
        """Why Spark could not be started. The pump ends with it."""
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._failures = FailureRecord(settings.require_dsn(), settings.slot)

    def request_stop(self) -> None:
        """Finish or abandon the current batch, and return from `run` within seconds. Safe in a signal handler."""
        self._stop.set()
        self._inbox.put(StopRequested())

    @property
    def at_work(self) -> bool:
        """Whether a stop has to shut something down in order. While the pump waits for the server or for its turn to
        lead, a signal handler may leave `run` with an exception instead."""
        return self._at_work

    def submit(self, work: Event) -> None:
        """Hand work to the current session's loop. Safe in any thread. Work that a session leaves behind is lost."""
        self._inbox.put(work)

    def run(
        self, until: Lsn | None = None, once: bool = False, copies: bool = False, *, standby: bool = False
    ) -> PumpResult:
        """Mirror until the goal is reached, or forever without a goal.

        The frontier has to reach `until`, or with `once` the end of WAL at the start. With `copies` or `once`, no
        table may be in copying any more. Raises KeyboardInterrupt after an orderly shutdown if Ctrl-C does so in this
        process.

        Raises UsageError if tasks are to run on a cluster that cannot reach the database or the warehouse.

        Raises NotLeader while another pump leads. A `standby` instead waits, without Spark, until it can lead or until
        the leader has reached the goal. It waits again if it loses the leadership.
        """
        if self._runner is None:
            settings = self._settings
            check_cluster(settings.master, settings.require_dsn(), settings.require_warehouse())
        ceiling = FileCeiling(self._settings.files_per_hour, time.monotonic())
        run_state = RunState(Lsn(0), file_ceiling=ceiling)
        # Only a standby has to know the end before it leads.
        end = self._persist(self._wal_end, run_state) if once and standby else None
        goal = Goal(end if once else until, copies or once)

        def await_turn() -> Leader | None:
            nonlocal goal
            leader = acquire_leadership(self._settings, goal, self._observer, self._stop, run_state, standby=standby)
            if leader is not None and once and goal.until is None:
                try:
                    goal = replace(goal, until=leader.wal_end())
                except BaseException:
                    leader.release()
                    raise
            return leader

        # Acquire the leadership before Spark starts, which takes memory: when two pumps start together, one of them
        # would start Spark for nothing.
        while (leader := self._persist(await_turn, run_state)) is not None:
            try:
                self._lead(leader, goal, run_state)
                break
            except NotLeader as error:
                if not standby:
                    raise
                self._observer(Step.LEAD_LOST, error=str(error))
                if self._runner is None:
                    end_java()
        reason = "stopped" if self._stop.is_set() else "goal"
        return PumpResult(run_state.frontier, run_state.commits, run_state.changes, reason)

    def _lead(self, leader: Leader, goal: Goal, run_state: RunState) -> None:
        """Lead until the goal is reached or the stop is requested, then release the leadership. Raises NotLeader once
        another pump leads."""
        storage = lake_storage(self._settings, make_directories=False)
        try:
            with self._while_leading():
                if self._runner is not None:
                    self._sessions(leader, goal, run_state, storage, self._runner)
                    return
                self._check_start(leader, storage, run_state)
                return_freed_memory()
                collect_seldom()
                self._spark_error = None
                task_runner = SparkTaskRunner.start(
                    self._settings.master,
                    _segments_at_a_time(self._settings),
                    self._spark_failed,
                    self._spark_ready,
                    _SHORT_WORK_SECONDS if goal.only_copies else 0.0,
                )
                try:
                    self._sessions(leader, goal, run_state, storage, task_runner)
                finally:
                    task_runner.close()
        finally:
            # Sessions release the leadership themselves. This covers a run that ends before its first session.
            leader.release()

    def _spark_failed(self, error: Exception) -> None:
        """Called by the thread that starts Spark. A session that begins later finds the error by itself."""
        self._spark_error = error
        self._inbox.put(ThreadFailed(error))

    def _spark_ready(self, seconds: float) -> None:
        """Called by the thread that has started Spark."""
        self._observer(Step.SPARK_READY, seconds=round(seconds, 1))

    def _check_start(self, leader: Leader, storage: StorageOptions, run_state: RunState) -> None:
        """Raises SourceError if no session can start. Otherwise it would lead for as long as Spark takes to start, each
        time that its supervisor restarts it, and `resync` or `reconcile` could not lead."""
        try:
            with connect(self._settings.require_dsn(), autocommit=True) as connection:
                check_start(connection, self._settings, storage, run_state, self._observer)
        except (MirrorPumpError, psycopg.Error) as error:
            pump_error = _as_pump_error(error)
            if _is_curable(error, pump_error):
                # The session tries again.
                return
            if isinstance(pump_error, SourceError):
                self._failures.failed(pump_error, Lsn(0), leader.epoch, retry_in=None)
            if pump_error is error:
                raise
            raise pump_error from error

    def _sessions(
        self, first: Leader, goal: Goal, run_state: RunState, storage: StorageOptions, runner: TaskRunner
    ) -> None:
        with deferred_interrupt(self.request_stop):
            self._at_work = True
            self._run_sessions(first, goal, run_state, storage, runner)

    def _run_sessions(
        self, first: Leader, goal: Goal, run_state: RunState, storage: StorageOptions, runner: TaskRunner
    ) -> None:
        indexes = self._indexes = KeyIndexes(
            self._settings.index_memory,
            storage,
            self._settings.limits.upkeep_interval,
            self._settings.index_disk,
            self._settings.limits.rows_read_at_once,
        )
        leads = [first]
        guard = WalGuard(self._settings, self._observer, lambda: run_state.epoch, self.submit)

        def live() -> None:
            again = True
            # A session that ended with an error released its leadership: the next session acquires it again.
            leader = leads.pop() if leads else None
            if leader is not None:
                # Another pump may have taken over meanwhile.
                leader.check()
            while again and not self._stop.is_set():
                self._inbox = SimpleQueue()
                if self._spark_error is not None:
                    raise self._spark_error
                for event in guard.given_up:
                    self._inbox.put(event)
                context = SessionContext(self._settings, storage, runner, self._observer, self._inbox)
                session = PumpSession(context, goal, run_state, indexes, self._stop.is_set, leader)
                try:
                    again = session.run()
                    leader = session.keep_lead() if again else None
                finally:
                    session.close()
            if leader is not None:
                leader.release()

        try:
            with guard, suppress(Abandoned):
                self._persist(live, run_state)
        except NotLeader:
            # Only the leader records errors.
            raise
        except (MirrorPumpError, psycopg.Error) as error:
            # The session only knows that its slot is gone.
            cause = guard.dropped or _as_pump_error(error)
            self._failures.failed(cause, run_state.frontier, run_state.epoch, retry_in=None)
            raise cause from (error if isinstance(error, psycopg.Error) else error.__cause__)
        except Exception as error:
            bug = MirrorPumpError(f"the pump has a bug: {type(error).__name__}: {error}", _BUG_REMEDY)
            self._failures.failed(bug, run_state.frontier, run_state.epoch, retry_in=None)
            raise

    def _persist(self, attempt: Callable[[], Result], run_state: RunState) -> Result | None:
        """Call `attempt`, and retry it after transient errors. Returns its result, or None once the stop is
        requested."""
        retries = Retries(Backoff(_FIRST_PAUSE, self._settings.reconnect_backoff_max, _JITTER))
        broken_tasks = 0
        while not self._stop.is_set():
            commits, began = run_state.commits, time.monotonic()
            try:
                return attempt()
            except (MirrorPumpError, psycopg.Error) as error:
                pump_error = naming_lock_holders(_as_pump_error(error), self._settings.require_dsn())
                if error is self._spark_error or not _is_curable(error, pump_error):
                    raise
                if run_state.commits > commits:
                    retries.succeeded()
                    broken_tasks = 0
                broken_tasks += isinstance(error, TaskFailed)
                if broken_tasks >= _BROKEN_TASKS:
                    raise
                # A standby or an idle pump that ran for long enough without an error counts as a success too.
                pause = retries.failed(time.monotonic() - began)
                self._observer(Step.RETRYING, error=str(pump_error), remedy=pump_error.remedy, pause=round(pause, 1))
                self._failures.failed(pump_error, run_state.frontier, run_state.epoch, retry_in=pause)
                retries.wait(self._stop.wait)
        return None

    def _wal_end(self) -> Lsn:
        with connect(self._settings.require_dsn(), autocommit=True) as connection:
            return wal_end(connection)


def _segments_at_a_time(settings: Settings) -> int:
    """As many as there are cores. With an object store more, since tasks wait for its answers."""
    is_local = local_path(settings.require_warehouse()) is not None
    return available_cores() * (1 if is_local else _REMOTE_SEGMENTS)


def _as_pump_error(error: MirrorPumpError | psycopg.Error) -> MirrorPumpError:
    """The error as an operator is told of it."""
    if not isinstance(error, psycopg.Error):
        return error
    pump_error = as_source_error(error, "mirroring")
    pump_error.__cause__ = error
    return pump_error


def _is_curable(error: Exception, pump_error: MirrorPumpError) -> bool:
    return isinstance(error, _CURABLE) or isinstance(pump_error, _CURABLE)
