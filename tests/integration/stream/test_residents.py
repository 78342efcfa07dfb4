"""Tasks that stay in Spark's slots: they die, hang, come and go, and each task's future is completed once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from structlog.testing import capture_logs

from mirror_pump.engine.spark_runtime.resident.connection import Stay
from mirror_pump.engine.spark_runtime.resident.residents import Residents
from mirror_pump.engine.spark_runtime.resident.task_pool import Capacity, TaskPool, Work
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.errors import TaskFailed
from mirror_pump.runtime.private_files import private_directory
from mirror_pump.testing.mirror import await_true

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB = 1 << 20
_LONG = Stay(60.0)


def process(_task: object) -> int:
    return os.getpid()


def hold(task: tuple[str, str]) -> int:
    """Says where it runs, and returns when it is told to."""
    begun, end = map(Path, task)
    begun.with_suffix(".new").write_text(str(os.getpid()))
    begun.with_suffix(".new").rename(begun)
    while not end.exists():
        time.sleep(0.01)
    return os.getpid()


def digest(data: bytes) -> tuple[str, bytes]:
    return hashlib.sha256(data).hexdigest(), data


class Heavy:
    def __init__(self, data: bytes) -> None:
        self.data = data


def give_back(task: Heavy) -> Heavy:
    return task


def unpicklable(_task: object) -> object:
    return threading.Lock()


class Weighty:
    """A task that says how long it took to arrive, and may stop the worker that receives it."""

    def __init__(self, weight: bytes, marker: str) -> None:
        self.weight = weight
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        # The marker comes first, so the worker has it when most of the frame is still to come.
        return _weighed, (_Marked(self.marker), self.weight)


class _Marked:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return _mark, (self.marker,)


def _mark(marker: str) -> str:
    # Once: whoever gets it again receives it.
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        time.sleep(60)
    return marker


def _weighed(_marker: str, weight: bytes) -> bytes:
    return weight


class Pool:
    """Residents of the run's Spark with limits of their own."""

    def __init__(self, spark: SparkSession, capacity: Capacity, stay: Stay, directory: Path, **limits: float) -> None:
        self.residents: Residents
        self.pool = TaskPool(capacity, self._start)
        self.errors: list[Exception] = []
        self.residents = Residents(spark.sparkContext, self.pool, stay, self._started, **limits)
        self._directory = directory
        self._count = 0

    def _start(self) -> None:
        self.residents.start()

    def _started(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)

    def submit(self, function: Callable[[Any], Any], task: object, *, urgent: bool = False) -> Future[Any]:
        self.pool.submit(work := Work(function, task, urgent))
        return work.future

    def hold(self, *, urgent: bool = False) -> HeldTask:
        self._count += 1
        begun, end = self._directory / f"begun-{self._count}", self._directory / f"end-{self._count}"
        return HeldTask(self.submit(hold, (str(begun), str(end)), urgent=urgent), begun, end)

    def close(self) -> None:
        self.pool.close(TaskFailed("the end"))
        self.residents.close()


class HeldTask:
    """A task that runs until it is released."""

    def __init__(self, future: Future[int], begun: Path, end: Path) -> None:
        self.future = future
        self._begun = begun
        self._end = end

    @property
    def has_begun(self) -> bool:
        return self._begun.exists()

    def worker(self) -> int:
        await_true(lambda: self.has_begun, 60, "the task has begun")
        return int(self._begun.read_text())

    def release(self) -> None:
        self._end.touch()


@pytest.fixture
def pool_of(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def make(total: int = 4, urgent: int = 2, reserved: int = 1, stay: Stay = _LONG, **limits: float) -> Pool:
        pools.append(Pool(spark, Capacity(total, urgent, reserved), stay, tmp_path, **limits))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def sockets() -> list[Path]:
    return list(private_directory().glob(f"tasks-{os.getpid()}-*"))


def kill(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], 10)


@pytest.mark.further
def test_a_worker_that_is_killed_in_a_task(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of()
    others = [pool.hold() for _ in range(2)]
    held = pool.hold()
    kill(held.worker())
    with pytest.raises(TaskFailed, match=r"a task of hold failed.*Python worker exited unexpectedly") as failed:
        held.future.result(30)
    assert "more memory" in failed.value.remedy
    for other in others:
        other.release()
    assert all(other.future.result(30) for other in others), "the others did not notice"
    assert pool.submit(process, 0).result(30) != held.worker()
    assert not pool.errors


@pytest.mark.further
def test_workers_that_are_killed_at_rest(pool_of: Callable[..., Pool]) -> None:
    """No task is handed to one that is gone, however shortly before it went."""
    pool = pool_of(total=2)
    for number in range(6):
        worker = pool.submit(process, number).result(60)
        os.kill(worker, signal.SIGKILL)
        if number % 3:
            # Before anybody can have noticed, and while they do.
            time.sleep(0.005 * number)
        assert pool.submit(process, number).result(60) != worker
    assert not pool.errors


@pytest.mark.further
def test_a_worker_that_is_killed_while_it_receives_a_task(pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    """It has not begun, so another one gets the task, also where Spark tries tasks once only."""
    pool = pool_of(total=1)
    marker = tmp_path / "receiving"
    future = pool.submit(len, Weighty(bytes(80 * _MIB), str(marker)))
    await_true(lambda: marker.exists() and marker.read_text() != "", 60, "it receives")
    kill(int(marker.read_text()))
    assert future.result(60) == 80 * _MIB


def test_a_task_that_kills_whoever_receives_it_fails(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=1)
    with pytest.raises(TaskFailed, match="Python worker exited unexpectedly"):
        pool.submit(len, _LethalTask()).result(120)
    assert pool.submit(len, b"four").result(60) == 4


class _LethalTask:
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


@pytest.mark.further
def test_a_worker_that_is_stopped_for_a_while(pool_of: Callable[..., Pool]) -> None:
    """Its task waits, and the others do not."""
    pool = pool_of()
    held = pool.hold(urgent=True)
    worker = held.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        held.release()
        assert pool.submit(process, 0, urgent=True).result(30) != worker
        assert not held.future.done()
    finally:
        os.kill(worker, signal.SIGCONT)
    assert held.future.result(30) == worker


def test_urgent_tasks_pass_the_others(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=2, reserved=1)
    others = [pool.hold() for _ in range(4)]
    others[0].worker()
    for _ in range(20):
        pool.submit(process, 0, urgent=True).result(60)
    assert [held.has_begun for held in others] == [True, False, False, False]
    for held in others:
        held.release()
    wait([held.future for held in others], 60)
    assert all(held.future.result(0) for held in others)


def test_an_urgent_task_that_finds_all_workers_busy_gets_one_more(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=6, reserved=1)
    others = [pool.hold() for _ in range(3)]
    workers = {held.worker() for held in others}
    assert pool.submit(process, 0, urgent=True).result(60) not in workers
    for held in others:
        held.release()


def test_workers_come_and_go_with_the_work(pool_of: Callable[..., Pool], spark: SparkSession) -> None:
    pool = pool_of(total=4, urgent=4, reserved=0, stay=Stay(0.5, keep=1))
    before = threading.active_count()
    assert not sockets()
    held = [pool.hold() for _ in range(9)]
    workers = {one.worker() for one in held[:4]}
    assert len(workers) == 4
    assert not held[4].has_begun
    (path,) = sockets()
    assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0
    for one in held:
        one.release()
    wait([one.future for one in held], 60)
    tracker = spark.sparkContext.statusTracker()
    await_true(lambda: len(tracker.getActiveJobsIds()) == 1, 30, "one stays")
    assert pool.submit(process, 0).result(60) in {one.future.result(0) for one in held}
    pool.close()
    assert not sockets()
    assert not tracker.getActiveJobsIds()
    await_true(lambda: threading.active_count() <= before, 30, "no thread stays")


def test_a_runner_that_has_nothing_to_do_keeps_no_slot(spark: SparkSession) -> None:
    """Queries of the same Spark need them."""
    runner = SparkTaskRunner(spark, 2)
    assert runner.submit(process, 0).result(60)
    tracker = spark.sparkContext.statusTracker()
    await_true(lambda: not tracker.getActiveJobsIds() and not sockets(), 30, "it has left")
    assert runner.submit(process, 0).result(60)


@pytest.mark.further
def test_a_worker_that_waits_for_a_slot_in_vain(pool_of: Callable[..., Pool], spark: SparkSession) -> None:
    """A cluster is not asked for an executor that is not needed any more."""
    first = pool_of(total=6, urgent=6, reserved=0)
    held = [first.hold() for _ in range(6)]
    for one in held:
        one.worker()
    second = pool_of(reserved=0, stay=Stay(0.5))
    unwanted = second.submit(process, 0)
    tracker = spark.sparkContext.statusTracker()
    await_true(lambda: len(tracker.getActiveJobsIds()) == 7, 20, "it waits")
    assert unwanted.cancel()
    await_true(lambda: len(tracker.getActiveJobsIds()) == 6, 30, "its job has ended")
    assert not second.errors
    wanted = second.submit(process, 0)
    assert not wanted.done()
    held[0].release()
    first.close()
    assert wanted.result(60)


@pytest.mark.further
def test_a_worker_that_does_not_connect_is_given_up(pool_of: Callable[..., Pool]) -> None:
    """Spark gives its slot to a Python that does nothing: whoever waits is told, and what follows gets another."""
    first = pool_of(total=1)
    daemon = psutil.Process(first.submit(process, 0).result(60)).parent()
    assert daemon is not None
    first.close()
    # All that Spark could take: those at rest, and the process that would bring a new one.
    stopped = [daemon, *daemon.children()]
    for one in stopped:
        with suppress(psutil.NoSuchProcess):
            one.suspend()
    second = pool_of(total=1, patience=1.0, look_interval=0.2)
    try:
        with capture_logs() as logged, pytest.raises(TaskFailed, match="has not connected to the driver"):
            second.submit(process, 0).result(60)
        assert [line["event"] for line in logged if line["component"] == "spark"] == ["worker-hangs"]
        assert len(second.errors) == 1
    finally:
        for one in stopped:
            with suppress(psutil.NoSuchProcess):
                one.resume()
    assert pool_of(total=1).submit(process, 0).result(60)


@pytest.mark.further
def test_running_tasks_are_cut_off_within_a_second(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=3, urgent=3, reserved=0)
    held = [pool.hold() for _ in range(3)]
    workers = [one.worker() for one in held]
    waiting = [pool.hold() for _ in range(20)]
    withdrawn = waiting.pop(3)
    assert withdrawn.future.cancel()
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 1
    for one in held:
        with pytest.raises(TaskFailed, match="a task of hold failed"):
            one.future.result(0)
    for one in waiting:
        with pytest.raises(CancelledError):
            one.future.result(0)
    await_true(lambda: not any(map(psutil.pid_exists, workers)), 30, "no process stays")
    assert not withdrawn.has_begun
    assert not any(one.has_begun for one in waiting)


@pytest.mark.further
@pytest.mark.parametrize("size", [0, 1, 200 * _MIB])
def test_tasks_and_results_of_any_size(pool_of: Callable[..., Pool], size: int) -> None:
    pool = pool_of(total=1)
    data = os.urandom(min(size, _MIB)) * (max(size, 1) // _MIB + 1)
    data = data[:size]
    expected = hashlib.sha256(data).hexdigest()
    found, back = pool.submit(digest, data).result(120)
    assert found == expected
    assert hashlib.sha256(back).hexdigest() == expected


def test_a_task_is_forgotten_when_it_has_ended(pool_of: Callable[..., Pool]) -> None:
    """Told by references, not by this process's memory: the C library may keep what other tests have freed."""
    pool = pool_of(total=1)
    task = Heavy(os.urandom(_MIB) * 100)
    result = pool.submit(give_back, task).result(120)
    worker = psutil.Process(pool.submit(process, 0).result(60))
    busy = worker.memory_info().rss
    assert result.data == task.data
    kept = [weakref.ref(task), weakref.ref(result)]
    del task, result
    await_true(lambda: not any(one() for one in kept), 30, "the driver forgets")
    assert busy < 400 * _MIB


def test_what_cannot_be_pickled(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=1)
    with pytest.raises(TypeError, match="pickle"):
        pool.submit(len, threading.Lock()).result(60)
    with pytest.raises(TaskFailed, match=r"a task of unpicklable failed: .*cannot pickle"):
        pool.submit(unpicklable, 0).result(60)
    assert pool.submit(len, b"four").result(60) == 4


def test_every_task_completes_once_while_workers_are_killed(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(total=3, urgent=3, reserved=1)
    told: list[Future[int]] = []
    workers: set[int] = set()
    stop = threading.Event()

    def kill_some() -> None:
        while not stop.wait(0.1):
            with suppress(KeyError, ProcessLookupError):
                os.kill(workers.pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    killer.start()
    futures: set[Future[int]] = set()
    outcomes = {"done": 0, "failed": 0}
    try:
        for number in range(600):
            future = pool.submit(process, bytes(number * 97), urgent=number % 3 == 0)
            future.add_done_callback(told.append)
            futures.add(future)
            while len(futures) >= 20:
                done, _ = wait(futures, 60, FIRST_COMPLETED)
                assert done, "nothing waits for ever"
                for one in done:
                    if one.exception() is None:
                        workers.add(one.result())
                        outcomes["done"] += 1
                    else:
                        assert isinstance(one.exception(), TaskFailed)
                        outcomes["failed"] += 1
                futures -= done
    finally:
        stop.set()
        killer.join()
    assert len(wait(futures, 60).not_done) == 0
    await_true(lambda: len(told) == 600, 30, "all are told")
    assert len(set(map(id, told))) == 600
    assert outcomes["done"] > 300, outcomes


_DRIVER = """
import sys, threading, time
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner

ready = threading.Event()
runner = SparkTaskRunner.start("local[*]", 2, print, lambda _: ready.set())
ready.wait()
tasks = [runner.submit(time.sleep, 600) for _ in range(2)]
while sum(task.running() for task in tasks) < 2:
    time.sleep(0.05)
time.sleep(1)
print("busy", flush=True)
time.sleep(600)
"""


def command_line(process: psutil.Process) -> str:
    """Empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_driver_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"busy\n"
        started = psutil.Process(driver.pid).children(recursive=True)
        assert len([one for one in started if "worker_daemon" in command_line(one)]) >= 3
    finally:
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def _daemons() -> list[psutil.Process]:
    """The processes from which Spark forks Python workers, without these."""
    java = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    daemons = []
    for child in java.children():
        with suppress(psutil.Error):
            if "mirror_pump.engine.spark_runtime.worker_daemon" in child.cmdline():
                daemons.append(child)
    return daemons


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        for killed in (*process.children(), process):
            killed.kill()


@pytest.mark.further
def test_a_killed_daemon_of_spark_does_not_end_the_pumps_start(spark: SparkSession) -> None:
    """It is killed while it starts, so that no worker comes of it: another one is started."""
    assert spark.sparkContext.parallelize([0], 1).map(process).collect()
    answers: list[Exception | float] = []
    for daemon in _daemons():
        _kill(daemon)
    await_true(lambda: not _daemons(), 60, "Spark has no daemon")
    runner = SparkTaskRunner.start("local[6]", 1, answers.append, answers.append)
    try:
        await_true(lambda: bool(_daemons()), 60, "Spark starts another one")
        _kill(_daemons()[0])
        await_true(lambda: bool(answers), 120, "the runner is ready")
        assert isinstance(answers[0], float), answers[0]
        assert runner.submit(process, 0).result(60)
    finally:
        runner.close()
