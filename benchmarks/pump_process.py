"""The measured process: a pump, or a register, that writes a line to a file for each of its steps.

Reads its request as JSON from stdin: `settings`, `steps` (the file), `action` (`register` or `run`), `until` (an LSN).
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import IO, Any

import orjson

from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.model import Lsn
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.memory import collect_seldom
from mirror_pump.settings.config import Settings

TABLE = "public.acct"


class StepFile:
    """An observer that writes each step with the time of CLOCK_MONOTONIC, which all processes of a machine share."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, step: Step, /, **details: object) -> None:
        line = orjson.dumps({"at": time.monotonic(), "step": step.value, "details": details}, default=str)
        with self._lock:
            self._file.write(line + b"\n")
            self._file.flush()


@contextmanager
def spark_runner(settings: Settings) -> Iterator[SparkTaskRunner]:
    """The pump's own Spark, as the pump starts it. Its workers are there: before that, the pump's own process would do
    the work, and its figures would be those of the first seconds of a pump."""
    answered: SimpleQueue[Exception | float] = SimpleQueue()
    with closing(SparkTaskRunner.start(settings.master, available_cores(), answered.put, answered.put)) as runner:
        answer = answered.get()
        if isinstance(answer, Exception):
            raise answer
        yield runner


def main() -> int:
    request: dict[str, Any] = orjson.loads(sys.stdin.buffer.read())
    settings = complete(Settings(**request["settings"]))
    with Path(request["steps"]).open("wb") as file:
        observer = StepFile(file)
        if request["action"] == "register":
            (outcome,) = register(settings, [TABLE], True, lambda _: None, observer)  # noqa: FBT003 - its signature
            if outcome.error is not None:
                raise outcome.error
            return 0
        # As the program does, which starts its Spark itself.
        gc.freeze()
        collect_seldom()
        with spark_runner(settings) as runner:
            pump = Pump(settings, observer=observer, runner=runner)

            def stop(_number: int, _frame: FrameType | None) -> None:
                pump.request_stop()

            signal.signal(signal.SIGTERM, stop)
            pump.run(until=None if request["until"] is None else Lsn(request["until"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
