"""Puts the pump's steps together: what happened to one batch, from its first change to its publish, and its trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from mirror_pump.model import format_lsn
from mirror_pump.pipeline.flow.batches import Period
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.telemetry import redact


@dataclass(frozen=True)
class ObservedBatch:
    """A batch that was published, or abandoned because of an error. Times are time.time(), seconds."""

    taken_at: float
    """When the session loop took the batch."""
    ended_at: float
    changes: int = 0
    """Row changes."""
    segments: int = 0
    frontier: int | None = None
    """The frontier after the publish (bytes of WAL)."""
    snapshots: int = 0
    """Iceberg snapshots that the publish made: one for each table that changed."""
    phases: Mapping[str, Period] = field(default_factory=dict)
    """`receive`, `decode`, `write`, `publish`: as far as the batch got. They overlap: tasks work while the batch is
    still received."""
    error: str | None = None
    """Why the batch was abandoned. It is received again."""

    @property
    def began_at(self) -> float:
        """When the first change arrived."""
        return min((period.began_at for period in self.phases.values()), default=self.taken_at)

    @property
    def complete_at(self) -> float:
        """When the batch's last commit was received."""
        return self.phases["receive"].ended_at if "receive" in self.phases else self.taken_at


class BatchObserver:
    """An observer that hands each batch to `ended` once it is published or abandoned, in the thread of the step.

    Steps of batches come from the session loop, in order; other threads' steps in between are of no concern here.
    """

    def __init__(self, ended: Callable[[ObservedBatch], None], clock: Callable[[], float] = time.time) -> None:
        self._ended = ended
        self._clock = clock
        self._batch: ObservedBatch | None = None
        self._publish_from = 0.0

    def __call__(self, step: Step, /, **details: object) -> None:
        if step is Step.RECEIVED:
            now = self._publish_from = self._clock()
            self._batch = ObservedBatch(now, now, number_of(details, "changes"), number_of(details, "segments"))
            self._add(details)
        elif self._batch is None:
            return
        elif step is Step.WRITTEN:
            self._publish_from = self._clock()
            self._add(details)
        elif step is Step.PUBLISHED:
            self._published(details)
        elif step in (Step.RETRYING, Step.LEAD_LOST):
            self._end(error=str(details.get("error", "")))
        elif step is Step.STREAMING:
            self._end(error="the session ended before the batch was published")

    def _add(self, details: Mapping[str, object]) -> None:
        assert self._batch is not None
        phases = {name: period for name, period in details.items() if isinstance(period, Period)}
        self._batch = replace(self._batch, phases={**self._batch.phases, **phases})

    def _published(self, details: Mapping[str, object]) -> None:
        assert self._batch is not None
        frontier = details.get("frontier")
        self._batch = replace(
            self._batch,
            frontier=frontier if isinstance(frontier, int) else None,
            snapshots=number_of(details, "snapshots"),
        )
        self._add({"publish": Period(self._publish_from, self._clock())})
        self._end(error=None)

    def _end(self, *, error: str | None) -> None:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self._ended(replace(batch, ended_at=self._clock(), error=error))


def number_of(details: Mapping[str, object], name: str) -> int:
    """A number among the details of a step; 0 if it has none."""
    value = details.get(name)
    return value if isinstance(value, int) else 0


class BatchTraces:
    """An observer that makes a span `batch` with children `receive`, `decode`, `write` and `publish` when the batch has
    ended: the pipeline carries no context around."""

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
