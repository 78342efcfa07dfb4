"""What the stream brought and waits: a batch whose deletes need much to be read, and what came after it.

Invariant: batches and positions are taken in stream order. A session that ends while they wait discards them, and the
next one receives them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from mirror_pump.pipeline.flow.batches import ReceivedBatch
from mirror_pump.pipeline.flow.events import CaughtUp
from mirror_pump.pipeline.key_index.whole_rows import RowReading

StreamEvent: TypeAlias = ReceivedBatch | CaughtUp


class PostponedBatches:
    """Those of one session. Only the loop's thread may use it."""

    def __init__(self) -> None:
        self._first: ReceivedBatch | None = None
        self._later: list[StreamEvent] = []
        self._readings: list[RowReading] = []
        """What the first one waits for."""

    @property
    def waiting(self) -> bool:
        """Whether a batch waits, and so must what comes from the stream."""
        return self._first is not None

    def wait_for(self, batch: ReceivedBatch, readings: Iterable[RowReading]) -> None:
        """The batch waits for these."""
        self._first, self._readings = batch, list(readings)

    def add(self, event: StreamEvent) -> None:
        """This came from the stream after a batch that waits."""
        if isinstance(event, CaughtUp) and self._later and isinstance(self._later[-1], CaughtUp):
            # The pump asks for its position again and again; only the last answer counts.
            self._later.pop()
        self._later.append(event)

    def taken(self, reading: object) -> tuple[ReceivedBatch | None, list[StreamEvent]]:
        """The row reader has done a reading. Returns the batch that need not wait any more, and what came after it."""
        self._readings = [other for other in self._readings if other is not reading]
        if self._first is None or self._readings:
            return None, []
        first, later = self._first, self._later
        self._first, self._later = None, []
        return first, later
