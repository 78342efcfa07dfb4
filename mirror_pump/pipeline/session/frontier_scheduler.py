"""Decides when the frontier moves without changes: for waiters, for the pump's goal, and past WAL that others write."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror_pump.model import Lsn

_IDLE_WAIT = 1.0
"""Seconds without work after which the loop checks whether a client still waits."""
_FIRST_POLL_INTERVAL = 0.02
"""Seconds to wait instead of _IDLE_WAIT when the server's answer is behind the wanted position, because the server had
not read the newest WAL yet. Doubles with every such answer up to _IDLE_WAIT: a server that decodes a large transaction
stays behind for long."""


@dataclass(frozen=True)
class Goal:
    """When the pump is done. A pump with neither field set never is."""

    until: Lsn | None = None
    """Done only when the frontier has reached this position."""
    copies: bool = False
    """Done only when no table is being copied."""

    @property
    def endless(self) -> bool:
        return self.until is None and not self.copies


class FrontierScheduler:
    """Belongs to one session. Only the loop's thread may use it.

    A publish writes WAL itself, so it must not be a reason for the next one: the frontier moves for nobody's sake only
    once others have written `foreign_bytes` and `foreign_interval` seconds have passed.
    """

    def __init__(self, goal: Goal, applied: Lsn, foreign_bytes: int, foreign_interval: float) -> None:
        self.goal = goal
        self.caught_up = applied
        """The stream holds nothing up to here that is not published."""
        self._wanted = Lsn(0)
        self._poll_interval = _FIRST_POLL_INTERVAL
        self._foreign_bytes = foreign_bytes
        self._foreign_interval = foreign_interval
        self._published_at = time.monotonic()

    def want(self, lsn: Lsn) -> None:
        """A client waits for the frontier to reach `lsn`."""
        if lsn > self._wanted:
            self._wanted = lsn
            self._poll_interval = _FIRST_POLL_INTERVAL

    def reached(self, lsn: Lsn) -> None:
        """The stream is caught up with WAL to here."""
        self.caught_up = max(self.caught_up, lsn)

    def has_waiters(self, frontier: Lsn) -> bool:
        """Whether a client waits for a position beyond `frontier`."""
        return self._wanted > frontier

    @property
    def poll_interval(self) -> float:
        """Seconds to wait for work: few while the server has to be asked again, as what is wanted is beyond what it has
        said."""
        return self._poll_interval if max(self._wanted, self.goal.until or Lsn(0)) > self.caught_up else _IDLE_WAIT

    def waited(self) -> None:
        """No work came for `poll_interval` seconds."""
        self._poll_interval = min(2 * self._poll_interval, _IDLE_WAIT)

    def due(self, frontier: Lsn) -> bool:
        """Whether the frontier, which is `frontier`, has to move to `caught_up`."""
        until = self.goal.until
        return (
            frontier < self._wanted <= self.caught_up
            or (until is not None and frontier < until <= self.caught_up)
            or (
                self.caught_up - frontier >= self._foreign_bytes
                and time.monotonic() - self._published_at >= self._foreign_interval
            )
        )

    def served(self) -> None:
        """The frontier is being moved to `caught_up`."""
        self._published_at = time.monotonic()
