"""`run --maintain`: the maintainer as a process of its own beside the pump, for as long as the pump runs.

Of its own because Spark's procedures want a Java heap and a lower priority, and because neither may end the other: a
maintainer that dies is started again after a pause, and all that is lost is the operation that it was at.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from mirror_pump.config import ENV_PREFIX, Settings
from mirror_pump.telemetry import get_logger

_PROGRAM = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from mirror_pump.cli.__main__ import main
sys.argv[1:] = ["maintain", "--serve"]
main()
"""
"""What the process runs: first it asks for SIGTERM when the pump is gone, also when that is killed (prctl(2),
PR_SET_PDEATHSIG)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a maintainer that ended is started again; doubles."""
_GRACE = 10.0
"""Seconds that it has to end when the pump does; what it was at is abandoned then, which harms nothing."""


class MaintainerProcess:
    """A maintainer that serves with the pump's settings. Enter it to start, leave it to stop."""

    def __init__(self, settings: Settings) -> None:
        self._environment = os.environ | environment(settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintainer", daemon=True)
        self._log = get_logger("maintain")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            command = [sys.executable, "-c", _PROGRAM]
            # A group of its own leaves a terminal's Ctrl-C to the pump.
            with subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL, process_group=0) as one:
                while one.poll() is None and not self._stopping.wait(0.5):
                    pass
                if one.poll() is None:
                    _end(one)
                    return
            self._log.warning("the maintainer ended", exit_code=one.returncode, again_in=pause)
            self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, which no other user of the machine can read."""
    found = {}
    for name, value in settings:
        if value is not None:
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            found[f"{ENV_PREFIX}{name.upper()}"] = text
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
