"""Signals that come at the worst moment: Ctrl-C at a chosen line of this process, any signal at a step of another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from mirror_pump.errors import Interrupted
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.tasks import ThreadTaskRunner

_FORKS = multiprocessing.get_context("forkserver")


class InterruptedLines:
    """Counts the lines that the main thread executes in some modules, and sends a signal to this process before one."""

    def __init__(self, modules: Collection[ModuleType], at: int | None, number: int = signal.SIGINT) -> None:
        """`at`: the number of the line, from 0; None: only counts."""
        self._signal = number
        self._files = frozenset(str(module.__file__) for module in modules)
        self._at = at
        self.lines = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts in the block, from `begin` on. Main thread only."""
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        trace = sys.gettrace()
        try:
            yield
        finally:
            sys.settrace(trace)
            signal.signal(signal.SIGINT, handler)

    def begin(self) -> None:
        """From the next line on, in the functions that run already and in those that they call."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename in self._files:
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._called)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "line":
            number, self.lines = self.lines, self.lines + 1
            if number == self._at:
                sys.settrace(None)
                signal.raise_signal(self._signal)
        return self._line


def interruptible(work: Callable[[Callable[[object], None]], object], step: str | None, number: int) -> None:
    """Does the work in this process, which sends itself a signal when the work reports the step for the first time.
    Ends with 130 if it was interrupted, as the program does."""
    # As at the start of a program, whatever this process inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    left = [step]

    def at(reported: object) -> None:
        if left and reported == left[0]:
            left.clear()
            os.kill(os.getpid(), number)

    try:
        work(at)
    except (KeyboardInterrupt, Interrupted):
        sys.exit(Interrupted.exit_code)


def rebuilt(settings: dict[str, Any]) -> Settings:
    """The settings of another process, which this one's environment does not change."""
    return Settings.model_construct(**settings | {"limits": InternalLimits(**settings["limits"])})


def signalled_restore(settings: Settings, table: str, step: str, number: int) -> int | None:
    """The exit code of `unregister --restore-heap` in another process that gets a signal at this step."""
    return _ended(_restore, settings.model_dump(mode="python"), table, step, number)


def signalled_resync(settings: Settings, step: str, number: int) -> int | None:
    """The exit code of `resync` of all tables in another process that gets a signal at this step of its pump."""
    return _ended(_resync, settings.model_dump(mode="python"), step, number)


def _ended(target: Callable[..., None], *arguments: object) -> int | None:
    process = _FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    process.join(120)
    return process.exitcode


def _restore(settings: dict[str, Any], table: str, step: str, number: int) -> None:
    from mirror_pump.ops.register.unregistration import unregister

    def restore(at: Callable[[object], None]) -> None:
        unregister(rebuilt(settings), table, drop_lake=False, restore_heap=True, report=lambda taken, _: at(taken))

    interruptible(restore, step, number)


def _resync(settings: dict[str, Any], step: str, number: int) -> None:
    from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
    from mirror_pump.ops.resync.resync import resync

    def in_threads(_master: str, urgent: int, _failed: object, _ready: object, _local_delay: float = 0.0) -> Any:
        return ThreadTaskRunner(urgent + 4)

    def copy_again(at: Callable[[object], None]) -> None:
        def observe(taken: Step, /, **_details: object) -> None:
            at(taken)

        resync(rebuilt(settings), (), wait=True, say=lambda _: None, on_progress=lambda _: None, observer=observe)

    # Starting Spark would take most of the time.
    SparkTaskRunner.start = in_threads  # type: ignore[assignment,method-assign]
    interruptible(copy_again, step, number)
