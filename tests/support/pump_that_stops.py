"""Runs a pump as a process that stops itself (SIGSTOP) at the n-th occurrence of a step, and that may be continued.

Arguments: DSN, warehouse, slot, step and n; n = 0 for never. It waits as a standby if another pump leads, and prints
the name of each step, one a line.
"""

from __future__ import annotations

import os
import signal
import sys

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.tasks import ThreadTaskRunner

SILENCE = 3.0
"""Seconds without a sign of life after which a standby leads: longer than a pause of a busy machine."""


def main(dsn: str, warehouse: str, slot: str, step: str, nth: str) -> None:
    left = int(nth)

    def observer(taken: Step, /, **details: object) -> None:
        nonlocal left
        print(taken.value, details.get("error", ""), flush=True)
        if taken is Step(step):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGSTOP)

    settings = Settings(
        dsn=dsn,
        warehouse=warehouse,
        slot=slot,
        publication=slot,
        storage_fsync=False,
        reconnect_backoff_max=0.5,
        limits=InternalLimits(leader_silence=SILENCE),
    )
    pump = Pump(settings, observer=observer, runner=ThreadTaskRunner())
    signal.signal(signal.SIGTERM, lambda *_: pump.request_stop())
    pump.run(standby=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
