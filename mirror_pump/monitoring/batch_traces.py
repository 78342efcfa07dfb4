"""One trace for each batch: a span `batch` with children `receive`, `decode`, `write` and `publish`."""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from mirror_pump.model import format_lsn
from mirror_pump.monitoring.batches import BatchObserver, ObservedBatch
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.telemetry import redact


class BatchTraces:
    """An observer that makes the spans of a batch when it has ended: the pipeline carries no context around."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float] = time.time) -> None:
        self._tracer = tracer
        self._batches = BatchObserver(self._ended, clock)

    def __call__(self, step: Step, /, **details: object) -> None:
        self._batches(step, **details)

    def _ended(self, batch: ObservedBatch) -> None:
        span = self._tracer.start_span("batch", start_time=_nanoseconds(batch.began_at))
        if span.is_recording():
            _describe(span, batch)
            within = set_span_in_context(span)
            for phase, period in batch.phases.items():
                child = self._tracer.start_span(phase, within, start_time=_nanoseconds(period.began_at))
                # Tasks may run on a machine whose clock differs.
                child.end(_nanoseconds(max(period.began_at, min(period.ended_at, batch.ended_at))))
        span.end(_nanoseconds(batch.ended_at))


def _describe(span: Span, batch: ObservedBatch) -> None:
    span.set_attribute("mirror_pump.changes", batch.changes)
    span.set_attribute("mirror_pump.segments", batch.segments)
    span.set_attribute("mirror_pump.snapshots", batch.snapshots)
    if batch.frontier is not None:
        span.set_attribute("mirror_pump.frontier", format_lsn(batch.frontier))
    if batch.error is not None:
        span.set_status(Status(StatusCode.ERROR, redact(batch.error)))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
