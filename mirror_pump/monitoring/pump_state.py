"""What the pump of this process does at present, as its steps tell it."""

from __future__ import annotations

import time
from enum import StrEnum

from mirror_pump.monitoring.batches import BatchObserver, ObservedBatch
from mirror_pump.pipeline.flow.steps import Step


class PumpPhase(StrEnum):
    """What a pump's process does."""

    STARTING = "starting"
    """It waits for the server, or asks for leadership."""
    STANDBY = "standby"
    """Another pump leads."""
    LEADING = "leading"
    """It leads, and begins its first session."""
    STREAMING = "streaming"
    """It works: it follows the stream, or has none to follow."""
    RETRYING = "retrying"
    """A session ended with an error. The next one starts after a pause."""

    @property
    def role(self) -> str:
        """`leader`, `standby` or `starting`."""
        return self.value if self in (PumpPhase.STARTING, PumpPhase.STANDBY) else "leader"


_PHASES = {
    Step.STANDBY: PumpPhase.STANDBY,
    Step.LEAD_LOST: PumpPhase.STANDBY,
    Step.LEADING: PumpPhase.LEADING,
    Step.STREAMING: PumpPhase.STREAMING,
    Step.WITHOUT_STREAM: PumpPhase.STREAMING,
}


class PumpState:
    """An observer that knows the pump's phase. Its attributes may be read in any thread."""

    def __init__(self) -> None:
        self.phase = PumpPhase.STARTING
        self.since = time.time()
        """When the phase began: time.time(), seconds."""
        self.changes = 0
        """Row changes that this process has published."""
        self._batches = BatchObserver(self._ended)

    def __call__(self, step: Step, /, **details: object) -> None:
        self._batches(step, **details)
        phase = _PHASES.get(step)
        if step is Step.RETRYING and self.phase is not PumpPhase.STANDBY:
            # A standby that cannot reach the server remains one.
            phase = PumpPhase.STARTING if self.phase is PumpPhase.STARTING else PumpPhase.RETRYING
        if phase is not None and phase is not self.phase:
            self.phase, self.since = phase, time.time()

    def _ended(self, batch: ObservedBatch) -> None:
        if batch.error is None:
            self.changes += batch.changes
