"""Ctrl-C for work that must end in order: SIGINT asks the work to stop; KeyboardInterrupt follows when it has
stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGINT calls `stop`. KeyboardInterrupt is raised when the block has ended, even with an error.

    A second SIGINT ends the process at once. Nothing changes outside of the main thread, or if the program handles
    SIGINT in its own way.
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
    """Restores the SIGINT handler after the block: pyspark installs one that calls Java at any point of the main
    thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # None: C code had installed the handler, and Python cannot restore it.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def _default_applies() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
