"""Pumps in separate processes that are killed at a step (tests/support/run_and_die.py)."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable

import pytest

from mirror_pump.testing.mirror import Mirror
from tests.support.run_and_die import forked

_FORKS = multiprocessing.get_context("forkserver")
# Once for all pumps: importing this takes a second of CPU, most of what such a pump uses in its life.
_FORKS.set_forkserver_preload(["mirror_pump.pipeline.session.pump", "mirror_pump.testing.tasks"])


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
    settings = mirror.settings
    given = {"batch_age": 0, "storage_fsync": "false", **options}
    arguments = [
        settings.require_dsn(), settings.require_warehouse(), settings.slot, step, str(nth), runner,
        *(f"{name}={value}" for name, value in given.items()),
    ]  # fmt: skip
    deadline = time.monotonic() + 120
    with tempfile.NamedTemporaryFile("w+") as output:
        pump = _FORKS.Process(target=forked, args=(output.name, *arguments), daemon=True)
        pump.start()
        while pump.is_alive() and time.monotonic() < deadline:
            meanwhile()
            pump.join(0.1)
        if pump.is_alive():
            pump.kill()
            pytest.fail(f"{step} did not come")
        assert pump.exitcode == -signal.SIGKILL, f"not killed at {step} ({pump.exitcode}): {output.read()[-2000:]}"
