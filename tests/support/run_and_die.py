"""Runs a pump that kills its own process, without any warning, at the n-th occurrence of a step.

A separate program for tests to start: kill -9 ends threads, connections and unwritten buffers like a crash. Arguments:
DSN, warehouse, slot, step, n, `spark` or `threads`, and settings as name=value. A step `a/b` is the first b after an a.
A pump that is to die in a conversion, a merge or at a key index does not end when it has caught up, since these come
later; nor does one with `once=false`.
"""

from __future__ import annotations

import os
import signal
import sys

from pydantic import ByteSize

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.tasks import ThreadTaskRunner

_QUICK = InternalLimits(batch_pause=0, upkeep_interval=0.1, retry_pause_max=0.25, batch_memory=ByteSize(512))

LATER_STEPS = (
    Step.CONVERTING,
    Step.POSITIONS_WRITTEN,
    Step.CONVERTED,
    Step.MERGING,
    Step.MERGE_WRITTEN,
    Step.MERGED,
    Step.INDEX_BUILDING,
    Step.INDEX_READY,
)


def forked(log: str, *arguments: str) -> None:
    """main() in a process forked for it, whose output goes to the file `log`."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main(*arguments)


def main(dsn: str, warehouse: str, slot: str, step: str, nth: str, runner: str, *options: str) -> None:
    """Ends with 0 only if the step did not occur that often."""
    left = int(nth)
    before, _, last = step.rpartition("/")
    awaited = {Step(before)} if before else set()

    def observer(taken: Step, /, **details: object) -> None:
        nonlocal left
        if taken is Step(last) and not awaited:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        awaited.discard(taken)

    chosen = dict(option.split("=", 1) for option in options)
    once = chosen.pop("once", "true") == "true" and not awaited and Step(last) not in LATER_STEPS
    settings = Settings(dsn=dsn, warehouse=warehouse, slot=slot, publication=slot, limits=_QUICK, **chosen)  # type: ignore[arg-type]  # pydantic reads texts
    pump = Pump(settings, observer=observer, runner=ThreadTaskRunner() if runner == "threads" else None)
    pump.run(once=once)


if __name__ == "__main__":
    main(*sys.argv[1:])
