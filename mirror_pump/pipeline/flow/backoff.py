"""When something that failed is tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass

LONGEST_PAUSE = 60.0
"""Seconds; pauses double up to it."""


@dataclass
class Backoff:
    """Pauses before the next try of one thing; each failure doubles them."""

    first: float = 1.0
    """Seconds of the first pause."""
    pause: float = 0.0
    """Seconds of the last one; 0 after a success."""
    not_before: float = 0.0
    """time.monotonic(), seconds."""

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.not_before

    def put_off(self) -> None:
        """It failed."""
        self.pause = min(max(self.pause * 2, self.first), LONGEST_PAUSE)
        self.not_before = time.monotonic() + self.pause
