"""Counters and histograms of the pump's steps, by OpenTelemetry's API."""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.metrics import Counter, Meter

from mirror_pump.monitoring.batches import BatchObserver, ObservedBatch, number_of
from mirror_pump.pipeline.flow.steps import Level, Step

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of histograms: from a publish on a local disk to a batch that holds one huge transaction."""


class StepMetrics:
    """An observer that counts steps with the instruments of one meter. Thread-safe, as instruments are."""

    def __init__(self, meter: Meter) -> None:
        self._publishes = meter.create_counter(
            "mirror_pump.publishes", "{publish}", "Publish transactions that landed, those without changes included"
        )
        self._commits = meter.create_counter(
            "mirror_pump.commits", "{commit}", "Iceberg commits that were published, one for each table of a publish"
        )
        self._files = meter.create_counter(
            "mirror_pump.files", "{file}", "Files that publishes brought into the lake, metadata included"
        )
        self._changes = meter.create_counter("mirror_pump.changes", "{change}", "Row changes published")
        self._problems = meter.create_counter(
            "mirror_pump.problems", "{problem}", "Warnings and errors of the pump, by step (docs/troubleshooting.md)"
        )
        self._by_step = _details_counters(meter)
        self._retries = meter.create_counter(
            "mirror_pump.retries", "{retry}", "New sessions after a lost connection, a failed task or a storage error"
        )
        self._partitions = meter.create_counter(
            "mirror_pump.retention.steps", "{step}", "Steps of partitions on their way out of the heap, by step"
        )
        self._batch_seconds = meter.create_histogram(
            "mirror_pump.batch.duration",
            "s",
            "From a batch's last commit to its publish",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._phase_seconds = meter.create_histogram(
            "mirror_pump.batch.phase.duration",
            "s",
            "Parts of a batch's work, by phase: receive, decode, write, publish",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._publish_seconds = meter.create_histogram(
            "mirror_pump.publish.duration",
            "s",
            "From staged metadata to the COMMIT of a publish transaction",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._batches = BatchObserver(self._batch)
        self._staged_at: float | None = None

    def __call__(self, step: Step, /, **details: object) -> None:
        self._batches(step, **details)
        if step.level in (Level.WARNING, Level.ERROR):
            self._problems.add(1, {"step": step.value})
        if step is Step.STAGED:
            self._staged_at = time.monotonic()
        elif step is Step.PUBLISHED:
            self._published(details)
        elif step is Step.RETRYING:
            self._retries.add(1)
        elif step is Step.RETENTION:
            self._partitions.add(1, {"step": str(details.get("step"))})
        elif step in self._by_step:
            counter, name = self._by_step[step]
            counter.add(number_of(details, name))

    def _published(self, details: Mapping[str, object]) -> None:
        self._publishes.add(1)
        self._commits.add(number_of(details, "snapshots"))
        self._files.add(number_of(details, "files"))
        if self._staged_at is not None:
            self._publish_seconds.record(time.monotonic() - self._staged_at)

    def _batch(self, batch: ObservedBatch) -> None:
        if batch.error is not None:
            return
        self._changes.add(batch.changes)
        self._batch_seconds.record(max(0.0, batch.ended_at - batch.complete_at))
        for phase, period in batch.phases.items():
            self._phase_seconds.record(period.seconds, {"phase": phase})


def _details_counters(meter: Meter) -> dict[Step, tuple[Counter, str]]:
    """Counters that add up one detail of a step, by step."""
    return {
        Step.CHUNK_COPIED: (
            meter.create_counter("mirror_pump.copy.rows", "{row}", "Rows that initial copies wrote to storage"),
            "rows",
        ),
        Step.CONVERTED: (
            meter.create_counter(
                "mirror_pump.converted_deletes", "{delete}", "Equality deletes converted to position deletes"
            ),
            "deletes",
        ),
        Step.MERGED: (
            meter.create_counter("mirror_pump.merged", "By", "Bytes of merged files that were published"),
            "bytes",
        ),
        Step.FOLDED: (
            meter.create_counter("mirror_pump.retention.folded", "{row}", "Corrections folded into the lake"),
            "rows",
        ),
    }
