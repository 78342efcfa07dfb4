"""Pumps in separate processes that are killed at a step (tests/support/run_and_die.py)."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable

import pytest

from mirror_pump.settings.config import Settings
from mirror_pump.testing.mirror import Mirror
from tests.support.run_and_die import forked

_FORKS = multiprocessing.get_context("forkserver")
# Once for all pumps: importing this takes a second of CPU, most of what such a pump uses in its life.
_FORKS.set_forkserver_preload(["mirror_pump.pipeline.session.pump", "mirror_pump.testing.tasks"])


class DoomedPump:
    """A pump in a separate process that is killed at the n-th occurrence of a step, or by somebody before."""

    def __init__(self, mirror: Mirror, step: str, nth: int, runner: str = "threads", **options: object) -> None:
        settings = mirror.settings
        given = {"storage_fsync": "false", **options}
        if settings.mirror is not None:
            given["mirror"] = settings.mirror
        refused = given.keys() - (Settings.model_fields.keys() | {"once"}) | given.keys() & {"limits"}
        # The process would end at its start, which a kill soon after would hide.
        assert not refused, f"no options of such a pump: {refused}"
        arguments = [
            settings.require_dsn(), settings.require_warehouse(), settings.slot, step, str(nth), runner,
            *(f"{name}={value}" for name, value in given.items()),
        ]  # fmt: skip
        self._output = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - closed when the pump is dead
        self._process = _FORKS.Process(target=forked, args=(self._output.name, *arguments), daemon=True)
        self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def join(self, seconds: float) -> None:
        """Returns when the process is dead, or the time is over."""
        self._process.join(seconds)

    def kill(self) -> None:
        """Kills it if it is alive. Raises AssertionError if it has ended in another way before."""
        self._process.kill()
        self._process.join()
        with self._output as output:
            code = self._process.exitcode
            assert code == -signal.SIGKILL, f"the pump ended with {code}, not by our hand: {output.read()[-4000:]}"


def die(
    mirror: Mirror,
    step: str,
    nth: int,
    runner: str = "threads",
    meanwhile: Callable[[], object] = lambda: None,
    **options: object,
) -> None:
    """A pump in a separate process that is killed at that step. Fails if the process ends before. `meanwhile` is called
    repeatedly until the process is dead."""
    deadline = time.monotonic() + 120
    pump = DoomedPump(mirror, step, nth, runner, **options)
    while pump.is_alive and time.monotonic() < deadline:
        meanwhile()
        pump.join(0.1)
    late = pump.is_alive
    pump.kill()
    if late:
        pytest.fail(f"{step} did not come")
