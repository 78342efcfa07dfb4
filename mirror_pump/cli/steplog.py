"""An observer that turns the pump's steps into log lines and meters."""

from __future__ import annotations

import time

from mirror_pump.model import format_lsn
from mirror_pump.pipeline.steps import Step
from mirror_pump.telemetry import get_logger, record_merge, record_publish, record_reconnect

SUMMARY_INTERVAL = 10.0
"""Seconds between two summary lines: a publish a second is too much for a journal, --debug shows each."""

_LEVELS = {
    Step.STANDBY: "info",
    Step.LEADING: "info",
    Step.LEAD_LOST: "warning",
    Step.STREAMING: "info",
    Step.REGISTERED: "info",
    Step.COPY_PLANNED: "info",
    Step.LIVE: "info",
    Step.TIER_ADVANCED: "info",
    Step.FOLD_FAILED: "warning",
    Step.RESOLVE_FAILED: "warning",
    Step.MERGE_FAILED: "warning",
    Step.RETRYING: "warning",
    Step.NOTE_REFUSED: "warning",
    Step.TABLE_NEGLECTED: "warning",
    Step.TABLE_FAILED: "error",
}
"""Steps of a batch or a chunk, which are not here, are debug lines."""


class StepLog:
    """Logs steps one by one, publishes also in summary. The steps of a batch come from one thread."""

    def __init__(self) -> None:
        self._log = get_logger("pump")
        self._summary_at = time.monotonic()
        self._received_at: float | None = None
        self._staged_at: float | None = None
        self._batch_changes = 0
        self._publishes = 0
        self._changes = 0

    def __call__(self, step: Step, /, **details: object) -> None:
        shown = {
            name: format_lsn(value) if name == "frontier" and isinstance(value, int) else value
            for name, value in details.items()
        }
        getattr(self._log, _LEVELS.get(step, "debug"))(step.value, **shown)
        now = time.monotonic()
        if step is Step.RECEIVED:
            self._received_at = now
            changes = details.get("changes")
            self._batch_changes = changes if isinstance(changes, int) else 0
        elif step is Step.STAGED:
            self._staged_at = now
        elif step is Step.RETRYING:
            self._received_at = None
            self._batch_changes = 0
            record_reconnect()
        elif step is Step.MERGED:
            size = details.get("bytes")
            record_merge(size if isinstance(size, int) else 0)
        elif step is Step.PUBLISHED:
            self._published(now, shown.get("frontier"))

    def _published(self, now: float, frontier: object) -> None:
        record_publish(
            changes=self._batch_changes,
            publish_seconds=now - self._staged_at if self._staged_at is not None else 0.0,
            batch_seconds=now - self._received_at if self._received_at is not None else None,
        )
        if self._publishes == 0:
            # An idle time before is no part of the rate.
            self._summary_at = self._received_at or now
        self._publishes += 1
        self._changes += self._batch_changes
        self._batch_changes = 0
        self._received_at = self._staged_at = None
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
