"""Runs the maintainer of `run --maintain` in a process of its own while the pump runs.

It is a separate process because Spark's procedures need a Java heap and a lower priority, and because a crash of one
must not end the other. A maintainer that dies is started again after a pause; only its current operation is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys

from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings

_PROGRAM = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from mirror_pump.cli.__main__ import main
sys.argv[1:] = ["maintain", "--serve"]
main()
"""
"""The process's program. prctl(2) with PR_SET_PDEATHSIG makes the kernel send it SIGTERM when the pump ends, even if
the pump is killed."""
_BACKOFF = Backoff(first=5.0, longest=300.0)
"""Pauses before a maintainer that ended is started again."""
_GRACE = 10.0
"""Seconds that it has to end when the pump does. After that it is killed, which is safe."""


class MaintainerProcess(ThreadedService):
    """A maintainer that serves with the pump's settings. Enter it to start, leave it to stop."""

    def __init__(self, settings: Settings) -> None:
        self._environment = os.environ | settings.environment()
        self._thread = ServiceThread("maintainer", self._run)
        self._log = get_logger("maintain")

    def _run(self) -> None:
        retries = Retries(_BACKOFF)
        while not self._thread.stopping():
            command = [sys.executable, "-c", _PROGRAM]
            # In a process group of its own, so that only the pump receives a terminal's Ctrl-C.
            with subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL, process_group=0) as process:
                while process.poll() is None and not self._thread.pause(0.5):
                    pass
                if process.poll() is None:
                    _end(process)
                    return
            pause = retries.failed()
            self._log.warning("the maintainer ended", exit_code=process.returncode, again_in=pause)
            retries.wait(self._thread.pause)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
