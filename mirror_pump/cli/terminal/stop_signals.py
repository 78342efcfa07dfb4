"""Handles SIGINT and SIGTERM in commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mirror_pump.cli.terminal.output import remark
from mirror_pump.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedBySignal(BaseException):
    """Raised by a signal while there is nothing to shut down in order. Not an Exception, so that it ends any wait or
    retry."""


class StopSignals:
    """Signal handling of a service: asks a service at work to stop, else raises StoppedBySignal in the main thread."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._at_work: Callable[[], bool] = lambda: False
        self._stop: Callable[[], None] = lambda: None
        self._grace = ""

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, as in shells; 0 after SIGTERM, which stops services."""
        return Interrupted.exit_code if self.received is signal.SIGINT else 0

    @property
    def name(self) -> str:
        """Name of the received signal, such as SIGTERM."""
        return "" if self.received is None else self.received.name

    def serve(self, at_work: Callable[[], bool], stop: Callable[[], None], grace: str) -> None:
        """From now on, a signal calls `stop` if `at_work` is true. `grace` tells the user what the stop waits for."""
        self._at_work, self._stop, self._grace = at_work, stop, grace

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals in the block and restores the previous handlers afterwards. Main thread only."""
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        # The next such signal has its default effect. Nothing is lost, as the slot sends the changes again.
        signal.signal(number, signal.SIG_DFL)
        if not self._at_work():
            raise StoppedBySignal
        remark(f"mirror-pump: {self.name}: stopping{self._grace} (send it again to stop at once)")
        self._stop()
