"""Puts the pump's steps together: what happened to one batch, from its first change to its publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mirror_pump.pipeline.flow.batches import Period
from mirror_pump.pipeline.flow.steps import Step


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
            self._batch = ObservedBatch(now, now, _count(details, "changes"), _count(details, "segments"))
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
            snapshots=_count(details, "snapshots"),
        )
        self._add({"publish": Period(self._publish_from, self._clock())})
        self._end(error=None)

    def _end(self, *, error: str | None) -> None:
        assert self._batch is not None
        batch, self._batch = self._batch, None
        self._ended(replace(batch, ended_at=self._clock(), error=error))


def _count(details: Mapping[str, object], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else 0
