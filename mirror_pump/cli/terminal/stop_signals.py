"""SIGINT and SIGTERM of commands that run until they are told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mirror_pump.cli.terminal.output import remark
from mirror_pump.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedBySignal(BaseException):
    """A signal came while there was nothing that a stop has to end in order. Not an Exception: it ends waits and
    retries wherever they are."""


class StopSignals:
    """What a service's signals do: ask it to stop if it is at work, else raise Stopped in the main thread."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._at_work: Callable[[], bool] = lambda: False
        self._stop: Callable[[], None] = lambda: None
        self._grace = ""

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, as shells have it; 0 after SIGTERM, with which services are stopped."""
        return Interrupted.exit_code if self.received is signal.SIGINT else 0

    @property
    def name(self) -> str:
        """Of the signal that came, such as SIGTERM."""
        return "" if self.received is None else self.received.name

    def serve(self, at_work: Callable[[], bool], stop: Callable[[], None], grace: str) -> None:
        """From now on, `stop` is called while `at_work`. `grace` says what the stop waits for."""
        self._at_work, self._stop, self._grace = at_work, stop, grace

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals in the block, and puts back what handled them before. Main thread only."""
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        # The next signal of the kind does what it does to any process: nothing is lost, the slot repeats it.
        signal.signal(number, signal.SIG_DFL)
        if not self._at_work():
            raise StoppedBySignal
        remark(f"mirror-pump: {self.name}: stopping{self._grace} (once more to stop at once)")
        self._stop()
