"""The residents of a Spark: a job of one task each, whose task takes the pool's work until it is not needed any more.

Spark places them, gives them Python and packages, and on a cluster starts them again elsewhere when their executor is
lost. A job that waits for a slot tells dynamic allocation that executors are wanted.
"""

from __future__ import annotations

import itertools
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

from py4j.protocol import Py4JError
from pyspark import SparkContext

from mirror_pump.engine.spark_runtime.cluster import is_cluster
from mirror_pump.engine.spark_runtime.resident.address import TcpAddress, UnixAddress, listen_tcp
from mirror_pump.engine.spark_runtime.resident.certificate import server_context
from mirror_pump.engine.spark_runtime.resident.connection import LostTask, ResidentConnection, Stay
from mirror_pump.engine.spark_runtime.resident.handshake import SECRET_BYTES
from mirror_pump.engine.spark_runtime.resident.listener import ResidentListener
from mirror_pump.engine.spark_runtime.resident.task_pool import TaskPool
from mirror_pump.engine.spark_runtime.resident.worker import Invitation, serve
from mirror_pump.engine.spark_runtime.task_errors import WORKER_DIED, task_failed, workers_failed
from mirror_pump.errors import TaskFailed, UsageError
from mirror_pump.runtime.telemetry import get_logger

_STARTED = 120.0
"""Seconds in which a resident that Spark has started has to connect."""
_LOOKS = 5.0
"""Seconds between two looks for residents that hang."""
_LAST_WORDS = 3.0
"""Seconds to wait for what Spark says of a worker that has died."""
_ENDED = 0.5
"""Seconds in which a cancelled job ends as a rule."""
_REFUSALS = 4
"""Workers that are lost before they have begun a task, until it fails."""
_HANGS = (
    "nothing if it happens once: mirror-pump tries again. Otherwise look whether the machine is overloaded, and whether"
    " executors can connect to the driver's ports (docs/cluster.md)"
)
PORT = "spark.mirrorPump.port"
"""The setting of Spark that fixes the driver's port for residents on a cluster."""

_numbers = itertools.count(1)
"""One for each resident of this process: Spark knows their jobs by it, and may have those of several pools."""


@dataclass(eq=False)
class _Resident:
    """One job of Spark, and the worker that it brings."""

    number: int
    expected: bool = True
    """Whether the pool waits for its worker."""
    has_come: bool = False
    """Whether it has ever connected."""
    cancelled: bool = False
    """Whether it was not needed any more before it connected."""
    connection: ResidentConnection | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the job has ended."""
    error: Exception | None = None
    """How it has ended."""
    active_since: float | None = None
    """Since when Spark has been seen to run it without a connection, by time.monotonic()."""
    unwanted_since: float | None = None
    """Since when it has waited for a slot while no task waited for it."""

    @property
    def group(self) -> str:
        return f"mirror-pump-resident-{self.number}"


class Residents:
    """Brings workers to a pool. Its socket, files and threads are there as long as it has residents."""

    def __init__(
        self,
        context: SparkContext,
        pool: TaskPool,
        stay: Stay,
        started: Callable[[Exception | None], None],
        *,
        patience: float = _STARTED,
        look_interval: float = _LOOKS,
    ) -> None:
        """`started` is called each time that a resident connects, before it gets a task, and with the error if one
        cannot be started. `patience`, in seconds: in which one that Spark has started has to connect."""
        self._context = context
        self._pool = pool
        self._stay = stay
        self._started = started
        self._patience = patience
        self._look_interval = look_interval
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._attempts = _attempts(context)
        # Guards what follows, and the fields of residents. The pool may be called with it, but not the other way round.
        self._lock = threading.Lock()
        self._residents: dict[int, _Resident] = {}
        self._threads: set[threading.Thread] = set()
        self._door: _Door | None = None
        self._looked = 0.0
        self._closed = False

    def start(self) -> None:
        """Starts a resident, for which the pool waits. The pool is told if it does not come."""
        resident = _Resident(next(_numbers))
        try:
            with self._lock:
                if self._door is None:
                    self._door = _Door(self._context, self._secret, lambda: self._tls, self._serve, self._tick)
                invitation = Invitation(self._door.address, resident.number, self._secret)
                thread = threading.Thread(
                    target=self._run, args=(resident, invitation), name="resident-job", daemon=True
                )
                thread.start()
                self._threads.add(thread)
                self._residents[resident.number] = resident
        except Exception as error:  # noqa: BLE001 (the thread that waits for the worker gets it)
            resident.error = error
            self._over(resident)

    def close(self) -> None:
        """Ends all residents, whose tasks fail, and waits for the threads."""
        with self._lock:
            self._closed = True
        while True:
            with self._lock:
                residents, threads = [*self._residents.values()], [*self._threads]
            if not threads:
                return
            for resident in residents:
                # If the Java process is gone, for lack of memory for example, the job ends by itself.
                with suppress(Py4JError, OSError):
                    self._context.cancelJobGroup(resident.group)
                if resident.connection is not None:
                    resident.connection.end()
            # A job that was not yet submitted is cancelled in the next round.
            threads[0].join(_ENDED)
            with self._lock:
                self._threads -= {thread for thread in threads if not thread.is_alive()}

    @cached_property
    def _tls(self) -> tuple[ssl.SSLContext, bytes]:
        return server_context(self._context._jvm)

    def _run(self, resident: _Resident, invitation: Invitation) -> None:
        """The thread of the job."""
        context = self._context
        try:
            context.setJobGroup(resident.group, "does tasks of the pump", interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(partial(serve, invitation)).collect()
        except Exception as error:  # noqa: BLE001 (the thread that waits for it, or its result, gets it)
            resident.error = resident.error or error
        self._over(resident)

    def _over(self, resident: _Resident) -> None:
        """Its job has ended: it connects no more."""
        with self._lock:
            self._residents.pop(resident.number, None)
            expected, resident.expected = resident.expected, False
            connection, error = resident.connection, resident.error
            failed = error is not None and not (resident.has_come or resident.cancelled or self._closed)
        resident.over.set()
        if connection is not None:
            connection.end()
        if expected:
            on_cluster = is_cluster(self._context.master)
            reason = workers_failed(error, on_cluster=on_cluster) if failed and error is not None else None
            if reason is not None:
                self._started(reason)
            self._pool.not_started(reason)
        with self._lock:
            self._threads.discard(threading.current_thread())
            door = None if self._residents else self._door
            if door is not None:
                self._door = None
        if door is not None:
            door.close()

    def _serve(self, number: int, connected: socket.socket) -> None:
        """The thread of a resident's connection, once that is authenticated."""
        with connected:
            with self._lock:
                resident = self._residents.get(number)
                if resident is None or self._closed:
                    return
                connection = ResidentConnection(connected, self._stay)
                # Spark may have started it again before we have noticed that the other one is gone.
                old_connection, resident.connection = resident.connection, connection
                expected, resident.expected = resident.expected, False
                resident.has_come, resident.active_since = True, None
                self._threads.add(threading.current_thread())
            if old_connection is not None:
                old_connection.end()
            self._started(None)
            self._pool.joined(connection, announced=expected)
            lost = connection.work(self._pool)
            self._disconnected(resident, connection)
            if lost is not None:
                self._do_again(resident, lost)
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _disconnected(self, resident: _Resident, connection: ResidentConnection) -> None:
        """The connection has ended, and the pool does not count on it any more."""
        with self._lock:
            if resident.connection is not connection:
                return
            resident.connection = None
            # Spark may start it again. Else its job ends.
            resident.expected = expects = resident.number in self._residents and not connection.dismissed
            if expects:
                self._pool.expect()

    def _do_again(self, resident: _Resident, lost: LostTask) -> None:
        """... or the task fails."""
        work = lost.work
        if lost.begun:
            work.deaths += 1
        else:
            work.refusals += 1
        if work.deaths < self._attempts and work.refusals < _REFUSALS and self._pool.repeat_task(work):
            return
        # Spark knows best why.
        resident.over.wait(_LAST_WORDS)
        text = f"{WORKER_DIED} ({lost.reason})" if resident.error is None else str(resident.error)
        work.future.set_exception(task_failed(work.name, text))

    def _tick(self) -> None:
        """Looks after residents that have not connected."""
        self._pool.distribute()
        now = time.monotonic()
        if now - self._looked < self._look_interval:
            return
        self._looked = now
        with self._lock:
            awaited = [resident for resident in self._residents.values() if resident.expected]
            spare = len(self._residents) - self._stay.keep
        for resident in awaited:
            # If Java is gone, its job ends with that error.
            with suppress(Py4JError, OSError):
                if self._is_active(resident):
                    self._end_if_it_hangs(resident, now)
                elif spare > 0:
                    spare -= self._end_if_unwanted(resident, now)

    def _end_if_it_hangs(self, resident: _Resident, now: float) -> None:
        resident.active_since = resident.active_since or now
        if now - resident.active_since > self._patience:
            seconds = round(now - resident.active_since)
            resident.error = TaskFailed(
                f"a worker that Spark has started has not connected to the driver for {seconds} s", _HANGS
            )
            get_logger("spark").warning("worker-hangs", seconds=seconds, remedy=_HANGS)
            self._context.cancelJobGroup(resident.group)

    def _end_if_unwanted(self, resident: _Resident, now: float) -> bool:
        """Dynamic allocation would go on asking for an executor."""
        if self._pool.has_waiting:
            resident.unwanted_since = None
            return False
        resident.unwanted_since = resident.unwanted_since or now
        if now - resident.unwanted_since <= self._stay.seconds:
            return False
        resident.cancelled = True
        self._context.cancelJobGroup(resident.group)
        return True

    def _is_active(self, resident: _Resident) -> bool:
        """Whether Spark has given it a slot."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(resident.group):
            job_info = tracker.getJobInfo(job)
            for stage in () if job_info is None else job_info.stageIds:
                info = tracker.getStageInfo(stage)
                if info is not None and info.numActiveTasks:
                    return True
        return False


class _Door:
    """Where residents connect: the listener, and what is to be removed with it."""

    def __init__(
        self,
        context: SparkContext,
        secret: bytes,
        tls: Callable[[], tuple[ssl.SSLContext, bytes]],
        admitted: Callable[[int, socket.socket], None],
        tick: Callable[[], None],
    ) -> None:
        self.address: TcpAddress | UnixAddress
        if is_cluster(context.master):
            conf = context.getConf()
            host = conf.get("spark.driver.host", "localhost").strip("[]")
            bind_address, port = conf.get("spark.driver.bindAddress", host).strip("[]"), conf.get(PORT, "0")
            encryption, certificate = tls()
            try:
                listening = listen_tcp(bind_address, int(port))
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"the driver cannot listen for its workers at {bind_address}, port {port}: {error}",
                    f"set {PORT} to a free port and spark.driver.bindAddress to an address of this machine, in"
                    " spark-defaults.conf (docs/cluster.md)",
                ) from error
            self.address = TcpAddress(host, listening.getsockname()[1], certificate)
            self._listener = ResidentListener(listening, encryption, secret, admitted, tick)
        else:
            listening, self.address = UnixAddress.listen()
            self._listener = ResidentListener(listening, None, secret, admitted, tick)

    def close(self) -> None:
        self._listener.close()
        if isinstance(self.address, UnixAddress):
            self.address.path.unlink(missing_ok=True)


def _attempts(context: SparkContext) -> int:
    """How often Spark does a task that takes its worker with it. Locally that is once, or as `local[N, F]` says."""
    if is_cluster(context.master):
        return int(context.getConf().get("spark.task.maxFailures", "4"))
    given = re.fullmatch(r"local\[[^,\]]+,\s*(\d+)\s*\]", context.master)
    return 1 if given is None else int(given[1])
