"""Background threads: one way to start, wake and stop them, and one way to pause between rounds of work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class ServiceThread:
    """A daemon thread that works until it is told to stop.

    `run` is the thread's work, as a rule `while thread.next_round(): ...; thread.await_wake(seconds)`. It returns soon
    after `stopping` has become true. `interrupt` wakes a `run` that waits for something else, such as a socket or a
    queue; `stop` and `request_stop` call it, in their caller's thread. `stop` waits for the thread's end, for at most
    `stop_within` seconds if that is given.

    Invariant: no wake-up is lost. A round begins with all earlier wake-ups cleared, so one that comes during a round
    starts the next round at once.

    `start`, `stop`, `request_stop`, `wake` and `stopping` may be called from any thread. As a context manager, it runs
    during the block.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        *,
        interrupt: Callable[[], None] | None = None,
        stop_within: float | None = None,
    ) -> None:
        self._interrupt = interrupt
        self._stop_within = stop_within
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. A thread starts once only."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to stop, and wait for its end. Called by the thread itself, it does not wait."""
        self.request_stop()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(self._stop_within)

    def request_stop(self) -> None:
        """Tell the thread to stop, without a wait for its end."""
        self._stopping.set()
        self._woken.set()
        if self._interrupt is not None:
            self._interrupt()

    def wake(self) -> None:
        """Begin the next round now, or right after the current one."""
        self._woken.set()

    def stopping(self) -> bool:
        """Whether the thread is to stop."""
        return self._stopping.is_set()

    def next_round(self) -> bool:
        """Begin a round of work, in the thread. Clears all earlier wake-ups. Returns False if the thread is to stop."""
        self._woken.clear()
        return not self.stopping()

    def await_wake(self, seconds: float) -> None:
        """Wait, in the thread, until the time is over, `wake` is called, or the thread is to stop."""
        if not self.stopping():
            self._woken.wait(seconds)

    def pause(self, seconds: float) -> bool:
        """Wait, in the thread, until the time is over or the thread is to stop; `wake` does not end the wait. Returns
        whether the thread is to stop."""
        return self._stopping.wait(seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ThreadedService:
    """Base of what works in a thread of its own, `_thread`. As a context manager, it works during the block."""

    _thread: ServiceThread

    def start(self) -> None:
        """Start the thread. A thread starts once only."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for its end. What it has not finished is done again by the next one."""
        self._thread.stop()

    def wake(self) -> None:
        """Begin the next round now, or right after the current one. Any thread may call it."""
        self._thread.wake()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
