"""Runs a pump that kills its own process, without any warning, at the n-th occurrence of a step.

A program of its own, for tests that start it: kill -9 ends threads, connections and unwritten buffers as a crash does.
Arguments: DSN, warehouse, slot, step, n, `spark` or `threads`, and settings as name=value.
"""

from __future__ import annotations

import os
import signal
import sys

from mirror_pump.config import Settings
from mirror_pump.pipeline.pump import Pump
from mirror_pump.pipeline.steps import Step
from mirror_pump.testing.tasks import ThreadTaskRunner


def main(dsn: str, warehouse: str, slot: str, step: str, nth: str, runner: str, *options: str) -> None:
    """Ends with 0 only if the step was not reached that often before all was done."""
    left = int(nth)

    def observer(taken: Step, /, **details: object) -> None:
        nonlocal left
        if taken is Step(step):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    chosen = dict(option.split("=", 1) for option in options)
    settings = Settings(dsn=dsn, warehouse=warehouse, slot=slot, publication=slot, **chosen)  # type: ignore[arg-type]  # pydantic reads texts
    Pump(settings, observer=observer, runner=ThreadTaskRunner() if runner == "threads" else None).run(once=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
