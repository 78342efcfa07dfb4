"""Ctrl-C where work has to end in order: the work is asked to stop, and KeyboardInterrupt comes when it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """In the block, SIGINT calls `stop`; KeyboardInterrupt is raised when the block has ended, however it ended.

    A second SIGINT ends the process at once. Outside of the main thread, and where somebody handles SIGINT in a way of
    his own, nothing changes.
    """
    if not _default_applies():
        yield
        return
    interrupted = False

    def handler(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(number, signal.SIG_DFL)
        stop()

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """What the block makes of SIGINT ends with it: pyspark puts a handler of its own in place that calls Java, from
    wherever the main thread happens to be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # None: somebody's C code had it, and does not come back this way.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def _default_applies() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
