"""Reads the mirror's status in a thread of its own, so that requests and exporters only ever take what is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mirror_pump.errors import MirrorPumpError
from mirror_pump.monitoring.history import INTERVAL, StatusHistory, StatusSample
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import MirrorStatus
from mirror_pump.runtime.service_thread import ServiceThread, ThreadedService
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.lock_holders import naming_lock_holders

_FULL_INTERVAL = 60.0
"""Seconds between two full readings, files included, if no client asks for one."""
_FULL_PAUSE = 1.0
"""Least seconds between two full readings, however many ask."""
_SHARE = 0.05
"""Largest share of the time that readings take: the pipeline shares the interpreter with them."""
_PATIENCE = 2.0
"""Seconds that a request waits for a reading before it gets the last one."""
STALE_AFTER = 30.0
"""Seconds after which a reading says nothing about the present any more."""


@dataclass(frozen=True)
class StatusReading:
    """What is known of the mirror. Replaced as a whole, so any thread may take it."""

    at: float = 0.0
    """time.monotonic() of the last successful reading, seconds."""
    status: MirrorStatus | None = None
    """The last reading: without the storage's part for tables that have changed since the last full one."""
    full: MirrorStatus | None = None
    """The last full reading."""
    history: dict[str, Any] = field(default_factory=dict)
    """Its document, see StatusHistory.to_json."""
    problem: str | None = None
    """Why the last attempt failed. None if it was successful."""

    @property
    def age(self) -> float:
        """Seconds since the last successful reading."""
        return time.monotonic() - self.at

    @property
    def lag_seconds(self) -> float | None:
        """How old the lake's content is at most. It grows while the database cannot be read."""
        if self.status is None or self.status.lag_seconds is None:
            return None
        return self.status.lag_seconds + (self.age if self.age > 2 * INTERVAL else 0.0)


class StatusSampler(ThreadedService):
    """Enter it to start reading. `reading` and `fresh` may be called in any thread."""

    def __init__(self, settings: Settings, changes: Callable[[], int]) -> None:
        """`settings` are complete. `changes`: row changes that this process has published so far."""
        self._settings = settings
        self._changes = changes
        self._history = StatusHistory()
        self._reader: StatusReader | None = None
        self._reading = StatusReading()
        self._rounds = 0
        self._full_wanted = True
        self._full_due_at = 0.0
        self._changed = threading.Condition()
        self._thread = ServiceThread("status", self._run, stop_within=_PATIENCE)
        self._log = get_logger("status")

    @property
    def reading(self) -> StatusReading:
        """What is known now."""
        return self._reading

    def fresh(self) -> StatusReading:
        """A full reading of this moment if one can be had within `_PATIENCE` and is not too soon, else what is
        known."""
        with self._changed:
            if time.monotonic() >= self._full_due_at:
                rounds = self._rounds
                self._full_wanted = True
                self._thread.wake()
                # A reading may be under way: the one after it has begun after this request.
                self._changed.wait_for(lambda: self._rounds > rounds and not self._full_wanted, _PATIENCE)
        return self._reading

    def _run(self) -> None:
        read_full_at = 0.0
        while self._thread.next_round():
            began = time.monotonic()
            full = self._full_wanted or began - read_full_at >= _FULL_INTERVAL
            self._full_wanted = False
            try:
                reading = self._read(full=full)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
                reading = self._failed(error)
            took = time.monotonic() - began
            if full:
                read_full_at = began
            with self._changed:
                self._reading = reading
                self._rounds += 1
                if full:
                    self._full_due_at = time.monotonic() + max(_FULL_PAUSE, took / _SHARE)
                self._changed.notify_all()
            self._thread.await_wake(max(self._settings.limits.status_interval, took / _SHARE))
        self._close()

    def _read(self, *, full: bool) -> StatusReading:
        if self._reader is None:
            self._reader = StatusReader(self._settings)
        status = self._reader.read() if full else self._reader.read_catalog()
        self._history.add(StatusSample.of(status, time.time(), self._changes()), status)
        return StatusReading(
            at=time.monotonic(),
            status=status,
            full=status if full else self._reading.full,
            history=self._history.to_json(status),
        )

    def _failed(self, error: Exception) -> StatusReading:
        self._close()
        if isinstance(error, MirrorPumpError):
            error = naming_lock_holders(error, self._settings.require_dsn())
        last = self._reading
        if last.problem is None:
            remedy = error.remedy if isinstance(error, MirrorPumpError) else ""
            self._log.warning("the status cannot be read", error=redact(str(error)), remedy=redact(remedy))
        return StatusReading(last.at, last.status, last.full, last.history, problem=redact(str(error)))

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(Exception):
                reader.__exit__(None, None, None)


class StatusSource:
    """What is known of the mirror, for those who ask: nothing before a sampler is there. For any thread."""

    def __init__(self) -> None:
        self.sampler: StatusSampler | None = None

    @property
    def reading(self) -> StatusReading:
        """What is known now. Returns at once."""
        return StatusReading() if self.sampler is None else self.sampler.reading

    def fresh(self) -> StatusReading:
        """What is known after an attempt to have a reading of this moment. May take `_PATIENCE`."""
        return StatusReading() if self.sampler is None else self.sampler.fresh()
