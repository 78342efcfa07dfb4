"""Background threads: one way to start, wake and stop them, and one way to pause between rounds of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.telemetry import get_logger, redact

_RESTARTS = Backoff(1.0, 60.0)
"""The pauses before a thread that ended by an error works again."""
_LONGEST_TEXT = 500
"""Characters of an error's text that are told. The log has all of it."""


@dataclass(frozen=True)
class ThreadFailure:
    """A thread whose work ended by an error that no code expects. It works again after a pause."""

    thread: str
    """Its name."""
    error: str
    since: str
    """When it ended for the first time in a row, in ISO 8601."""
    ends: int
    """How often it has ended since."""


class _WorkingThread(threading.Thread):
    """A thread of the operating system that tells whether its work fails."""

    failure: ThreadFailure | None = None
    failed_at = 0.0
    """time.monotonic() when it failed last, in seconds."""


def thread_failures() -> list[ThreadFailure]:
    """The threads of this process whose work has ended by an error, until it has gone well for as long as their longest
    pause."""
    now = time.monotonic()
    threads = [thread for thread in threading.enumerate() if isinstance(thread, _WorkingThread)]
    failed = [thread for thread in threads if now - thread.failed_at < 2 * _RESTARTS.longest]
    return sorted((thread.failure for thread in failed if thread.failure is not None), key=lambda each: each.thread)


class ServiceThread:
    """A daemon thread that works until it is told to stop.

    `run` is the thread's work, as a rule `while thread.next_round(): ...; thread.await_wake(seconds)`. It returns soon
    after `stopping` has become true. `interrupt` wakes a `run` that waits for something else, such as a socket or a
    queue; `stop` and `request_stop` call it, in their caller's thread. `stop` waits for the thread's end, for at most
    `stop_within` seconds if that is given.

    Invariant: no wake-up is lost. A round begins with all earlier wake-ups cleared, so one that comes during a round
    starts the next round at once.

    A `run` that ends by an exception is called again after a pause that doubles each time, since what it does would be
    missed in silence; `wake` ends the pause. `thread_failures` tells of it, and the log has the traceback.

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
        self.woken = False
        """Whether the present round began by a call of `wake`."""
        self._run = run
        self._thread = _WorkingThread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. A thread starts once only."""
        self._thread.start()

    def _work(self) -> None:
        retries = Retries(_RESTARTS)
        while True:
            began = time.monotonic()
            try:
                self._run()
            except Exception as error:  # noqa: BLE001 - what the thread does would be missed in silence
                if self.stopping():
                    # What it works with is being closed.
                    get_logger(self._thread.name).debug("the thread ended by an error", exc_info=True)
                    return
                retries.failed(time.monotonic() - began)
                self._note(error, retries.failures)
            else:
                return
            self._woken.clear()
            retries.wait(self.await_wake)
            if self.stopping():
                return

    def _note(self, error: Exception, ends: int) -> None:
        name, last = self._thread.name, self._thread.failure
        text = redact(f"{type(error).__name__}: {error}")[:_LONGEST_TEXT]
        since = last.since if last is not None and ends > 1 else datetime.now(UTC).isoformat()
        self._thread.failure, self._thread.failed_at = ThreadFailure(name, text, since, ends), time.monotonic()
        get_logger("threads").error(
            "a thread ended by an unexpected error, and works again soon", thread=name, exc_info=True
        )

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
        self.woken = self._woken.is_set()
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
