"""How far F has to move without changes of its own: for waiters, for the pump's goal, past what others write."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror_pump.model import Lsn

_IDLE_WAIT = 1.0
"""Seconds without any work after which the loop asks itself whether somebody still waits."""
_FIRST_ASK = 0.02
"""As _IDLE_WAIT, when the server's answer fell short of what is wanted: it had not read the newest WAL yet. Doubles
with every such answer up to _IDLE_WAIT, since a server that decodes a large transaction falls short for long."""


@dataclass(frozen=True)
class Goal:
    """When the pump is done; with neither part, never."""

    until: Lsn | None = None
    """F has reached it."""
    copies: bool = False
    """No table is being copied any more."""

    @property
    def endless(self) -> bool:
        return self.until is None and not self.copies


class FrontierScheduler:
    """Of one session. The loop's thread only.

    A publish writes WAL itself, so it must not be a reason for the next one: F moves for nobody's sake only once others
    have written `foreign_bytes` and `foreign_interval` seconds have passed.
    """

    def __init__(self, goal: Goal, applied: Lsn, foreign_bytes: int, foreign_interval: float) -> None:
        self.goal = goal
        self.caught_up = applied
        """The stream holds nothing up to here that is not published."""
        self._wanted = Lsn(0)
        self._poll_interval = _FIRST_ASK
        self._foreign_bytes = foreign_bytes
        self._foreign_interval = foreign_interval
        self._served_at = time.monotonic()

    def want(self, lsn: Lsn) -> None:
        """Somebody waits for F to reach it."""
        if lsn > self._wanted:
            self._wanted = lsn
            self._poll_interval = _FIRST_ASK

    def reached(self, lsn: Lsn) -> None:
        """The stream is caught up with WAL to here."""
        self.caught_up = max(self.caught_up, lsn)

    def has_waiters(self, frontier: Lsn) -> bool:
        """Whether somebody waits for more than `frontier`."""
        return self._wanted > frontier

    @property
    def poll_interval(self) -> float:
        """Seconds to wait for work: few while the server has to be asked again, as what is wanted is beyond what it has
        said."""
        return self._poll_interval if max(self._wanted, self.goal.until or Lsn(0)) > self.caught_up else _IDLE_WAIT

    def waited(self) -> None:
        """No work came for that long."""
        self._poll_interval = min(2 * self._poll_interval, _IDLE_WAIT)

    def due(self, frontier: Lsn) -> bool:
        """Whether F, which is `frontier`, has to move to `caught_up`."""
        until = self.goal.until
        return (
            frontier < self._wanted <= self.caught_up
            or (until is not None and frontier < until <= self.caught_up)
            or (
                self.caught_up - frontier >= self._foreign_bytes
                and time.monotonic() - self._served_at >= self._foreign_interval
            )
        )

    def served(self) -> None:
        """F moves to `caught_up` now."""
        self._served_at = time.monotonic()
