"""Ctrl-C for work that must end in order: SIGINT asks the work to stop; KeyboardInterrupt follows when it has
stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


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


def in_other_thread(work: Callable[[], T], name: str) -> T:
    """What `work` returns or raises, in a thread of its own. SIGINT interrupts the wait for it, not the work, which
    goes on until the process ends."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome.result()


def _default_applies() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
