"""An observer that turns the pump's steps into log lines."""

from __future__ import annotations

import re
import threading
import time

from mirror_pump.model import format_lsn
from mirror_pump.pipeline.flow.batches import Period
from mirror_pump.pipeline.flow.steps import Level, Step
from mirror_pump.runtime.telemetry import get_logger

SUMMARY_INTERVAL = 10.0
"""Seconds between summary lines: a line per publish, several a second, would be too much. --debug shows each."""

REPEAT_INTERVAL = 3600.0
"""Seconds after which a warning about a step that is retried repeatedly is logged again."""

_TRIED_AGAIN = frozenset(
    {Step.RETENTION_REFUSED, Step.FOLD_FAILED, Step.CONVERSION_FAILED, Step.MERGE_FAILED, Step.INDEX_FAILED}
)
"""Steps that are retried within seconds or minutes, and may fail for the same reason until an operator acts."""

_NUMBERS = re.compile(r"[0-9][0-9.:+ -]*")


class _Repeats:
    """Remembers which warnings were logged recently. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: dict[tuple[Step, str, str], tuple[float, int]] = {}
        """Time of the warning (time.monotonic(), seconds), and how often it has been suppressed since."""

    def suppressed(self, step: Step, table: str, reason: str) -> int | None:
        """How often this was suppressed since it was last logged; None if it must be suppressed now, too."""
        # Processes, pins, times and partitions vary between attempts, so numbers are ignored in comparing reasons.
        key = step, table, _NUMBERS.sub("#", reason)
        now = time.monotonic()
        with self._lock:
            for old_key in [old_key for old_key, (at, _) in self._logged.items() if now - at >= 2 * REPEAT_INTERVAL]:
                del self._logged[old_key]
            at, times = self._logged.get(key, (None, 0))
            if at is not None and now - at < REPEAT_INTERVAL:
                self._logged[key] = at, times + 1
                return None
            self._logged[key] = now, 0
            return times


class StepLog:
    """Logs each step at its level, and publishes also as a summary. All steps of a batch come from one thread.

    If a retried step fails again for the same reason, it is a warning once per `REPEAT_INTERVAL`, else a debug line.
    """

    def __init__(self) -> None:
        self._log = get_logger("pump")
        self._repeats = _Repeats()
        self._summary_at = time.monotonic()
        self._received_at: float | None = None
        self._batch_changes = 0
        self._publishes = 0
        self._changes = 0

    def __call__(self, step: Step, /, **details: object) -> None:
        shown = dict(_field(name, value) for name, value in details.items())
        self._write(step, shown)
        now = time.monotonic()
        if step is Step.RECEIVED:
            self._received_at = now
            changes = details.get("changes")
            self._batch_changes = changes if isinstance(changes, int) else 0
        elif step is Step.RETRYING:
            self._received_at = None
            self._batch_changes = 0
        elif step is Step.PUBLISHED:
            self._published(now, shown.get("frontier"))

    def _write(self, step: Step, shown: dict[str, object]) -> None:
        level = step.level
        if step.remedy and not shown.get("remedy"):
            shown["remedy"] = step.remedy
        if step in _TRIED_AGAIN:
            reason = str(shown.get("reason", shown.get("error")))
            times = self._repeats.suppressed(step, str(shown.get("table")), reason)
            if times is None:
                level = Level.DEBUG
            elif times:
                shown["times_since_last_told"] = times
        getattr(self._log, level.value)(step.value, **shown)

    def _published(self, now: float, frontier: object) -> None:
        if self._publishes == 0:
            # An idle period before is not part of the rate.
            self._summary_at = self._received_at or now
        self._publishes += 1
        self._changes += self._batch_changes
        self._batch_changes = 0
        self._received_at = None
        if now - self._summary_at >= SUMMARY_INTERVAL:
            seconds = now - self._summary_at
            self._log.info(
                "progress",
                frontier=frontier,
                publishes=self._publishes,
                changes=self._changes,
                changes_per_second=round(self._changes / seconds),
            )
            self._summary_at, self._publishes, self._changes = now, 0, 0


def _field(name: str, value: object) -> tuple[str, object]:
    """A step's detail as a field of its log line."""
    if isinstance(value, Period):
        return f"{name}_seconds", round(value.seconds, 3)
    return name, format_lsn(value) if name == "frontier" and isinstance(value, int) else value
