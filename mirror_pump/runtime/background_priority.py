"""Starts programs that take only what others leave of cores and disk. Linux only: elsewhere they start as any other.

Niceness counts among the processes of one scheduling group: a container's, a service's, or, where a kernel groups
processes by session (autogroup), a session's. So such a program gets a session of its own, whose group is as nice.

A program that runs in the background must never hold what others wait for, a lock or a connection: on a busy machine it
may take very long to let it go.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

NICENESS = 19
"""The highest: 1.5 % of a core where another process wants all of it."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
"""Number of the system call ioprio_set(2), which the C library has no function for, by machine."""
_WHO_PROCESS, _IDLE_CLASS = 1, 3
_CLASS_SHIFT = 13
_ATTEMPTS, _PAUSE = 10, 0.1
"""The kernel lets a user change one session group in a tenth of a second."""


def start_in_background(start: Callable[[], _T]) -> _T:
    """Returns what `start` does, with the lowest priority for all processes that it starts. It runs in a thread of its
    own: Linux keeps priorities by thread, processes inherit them, and none may raise its own again."""
    if sys.platform != "linux":
        return start()
    result: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _lower_this_thread()
            result.append(start())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="background-start")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def lower_session(pid: int) -> None:
    """Lowers the priority of the session that a process leads, where the kernel groups processes by sessions. Does
    nothing for a process that is in another one's session."""
    with suppress(OSError):
        if sys.platform != "linux" or os.getsid(pid) != pid:
            return
        for _ in range(_ATTEMPTS):
            try:
                Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
            except BlockingIOError:
                time.sleep(_PAUSE)
            else:
                return


def _lower_this_thread() -> None:
    """Lowers the priority of the calling thread. What the system does not allow is left out."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    with suppress(OSError):
        # It does not interrupt others when it wakes up.
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _IDLE_CLASS << _CLASS_SHIFT)
