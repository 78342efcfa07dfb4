"""Keeps the pins of a reader that lives, and releases those of one that is gone.

Invariant: as long as `check` raises nothing, none of the pins has expired since the keeper was started. They are
renewed when a third of their time is over, and a renewal that misses one is an error that `check` raises from then on.
"""

from __future__ import annotations

from collections.abc import Callable

from mirror_pump.errors import SourceError
from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.runtime.telemetry import get_logger

PIN_SECONDS = 900.0
"""How long a pin outlives a reader that died. A live reader extends its pin."""
_LOOK_INTERVAL = 1.0
"""Seconds between two checks whether the reader still exists."""


class PinKeeper:
    """A thread that keeps the pins of one reader."""

    def __init__(
        self,
        thread_name: str,
        pin_seconds: float,
        *,
        renew: Callable[[], bool],
        stopped: Callable[[], bool],
        release: Callable[[], None],
    ) -> None:
        """`renew` lets all pins last for `pin_seconds` from now on; it returns False if one of them has expired, and
        may raise SourceError. `stopped` is called once a second; when it returns True, because the reader is gone,
        `release` is called, which may stop this keeper."""
        self._pin_seconds = pin_seconds
        self._renew = renew
        self._stopped = stopped
        self._release = release
        self._failure: SourceError | None = None
        self._thread = ServiceThread(thread_name, self._keep)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, also one that was never started. May be called by the thread itself."""
        self._thread.stop()

    def check(self) -> None:
        """Raises SourceError if a pin was lost while in use. Rows read since may be incomplete."""
        if self._failure is not None:
            raise self._failure

    def _keep(self) -> None:
        interval = self._pin_seconds / 3
        look_interval = min(_LOOK_INTERVAL, interval)
        waited = 0.0
        while not self._thread.pause(look_interval):
            if self._stopped():
                self._release()
                return
            waited += look_interval
            if waited < interval:
                continue
            waited = 0.0
            try:
                if not self._renew():
                    raise SourceError("a pin expired while it was in use", "read again")  # noqa: TRY301 - one way out
            except SourceError as error:
                self._failure = error
                get_logger("read").warning("a pin was lost", error=str(error))
                return
