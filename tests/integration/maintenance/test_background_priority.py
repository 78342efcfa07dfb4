"""The processes of a maintainer's Spark take what others leave of cores and disk."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pytest

from mirror_pump.runtime.background_priority import NICENESS, lower_session, start_in_background

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="priorities are by process elsewhere")

_IOPRIO_GET = {"x86_64": 252, "aarch64": 31, "riscv64": 31, "ppc64le": 274, "s390x": 283}
_SPARK = """
import os, orjson
from mirror_pump.engine.spark_runtime.session import SparkSettings, spark_session
spark = spark_session(SparkSettings("local[2]", jars=False, background=True))
workers = spark.sparkContext.parallelize(range(4), 2).map(lambda _: os.getpid()).collect()
jvm = spark.sparkContext._gateway.proc.pid
print(orjson.dumps({"jvm": jvm, "workers": sorted(set(workers)), "driver": os.getpid()}).decode(), flush=True)
input()
spark.stop()
"""


def _io_class(pid: int) -> int:
    return int(ctypes.CDLL(None).syscall(_IOPRIO_GET[platform.machine()], 1, pid)) >> 13


def _assert_in_background(pid: int) -> None:
    """All of its threads."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            niceness = os.getpriority(os.PRIO_PROCESS, int(task.name))
            assert (niceness, _io_class(int(task.name))) == (NICENESS, 3)
            assert os.sched_getscheduler(int(task.name)) == os.SCHED_BATCH
        except ProcessLookupError:
            continue


def test_a_process_that_is_started_in_the_background_has_the_lowest_priority() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    command = [sys.executable, "-c", "input()"]
    process = start_in_background(lambda: subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    with process:
        lower_session(process.pid)
        _assert_in_background(process.pid)
        group = Path(f"/proc/{process.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f"nice {NICENESS}\n")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert process.returncode == 0
    # The caller's own priority, that of its session, and of threads that it starts later, have not changed.
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    thread.start()
    thread.join()
    assert [os.getpriority(os.PRIO_PROCESS, 0), *found] == [before, before]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_session_that_others_share_keeps_its_priority() -> None:
    group = Path("/proc/self/autogroup")
    before = group.read_text() if group.exists() else ""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lower_session(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert (group.read_text() if group.exists() else "") == before


def test_an_error_of_the_start_is_the_callers() -> None:
    with pytest.raises(FileNotFoundError):
        start_in_background(lambda: subprocess.Popen(["/nowhere/at/all"]))


def test_what_the_system_does_not_allow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert start_in_background(lambda: 1) == 1


def test_a_maintainers_java_and_its_workers_are_in_the_background_and_end_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _SPARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith(b"{")), b"{}")
        pids = orjson.loads(line)
        _assert_in_background(pids["jvm"])
        for worker in pids["workers"]:
            _assert_in_background(worker)
        assert os.getsid(pids["jvm"]) == pids["jvm"]
        assert os.getpriority(os.PRIO_PROCESS, pids["driver"]) < NICENESS
        process.kill()
    # Java ends when its stdin is closed, although it is in a session of its own.
    _await_end(pids["jvm"])


def _await_end(pid: int) -> None:
    ended = threading.Event()
    for _ in range(300):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        ended.wait(0.1)
    raise AssertionError(f"process {pid} goes on")
