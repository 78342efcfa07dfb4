"""Decides when the frontier moves without changes: for waiters, for the pump's goal, or past WAL written by others."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror_pump.model import Lsn

_IDLE_WAIT = 1.0
"""Seconds without work after which the loop checks whether a client still waits."""
_FIRST_POLL_INTERVAL = 0.02
"""Seconds to wait instead of _IDLE_WAIT when the server's answer is behind the wanted position, because the server has
not read the newest WAL yet. Doubles with every such answer up to _IDLE_WAIT: a server that decodes a large transaction
stays behind for a long time."""


@dataclass(frozen=True)
class Goal:
    """When the pump is done. A pump with neither field set runs forever."""

    until: Lsn | None = None
    """The pump is done only when the frontier has reached this position."""
    copies: bool = False
    """The pump is done only when no table is being copied."""

    @property
    def only_copies(self) -> bool:
        """Whether the pump runs for copies alone, as that of `register` does."""
        return self.copies and self.until is None

    @property
    def endless(self) -> bool:
        return self.until is None and not self.copies


class FrontierScheduler:
    """Belongs to one session. Only the loop's thread may use it.

    A publish writes WAL itself, and this WAL must not trigger the next publish: with thousands of tables it is more
    than others write. So without a waiter or a goal the frontier moves only once `foreign_bytes` of WAL lie behind the
    commit of the last publish that moved it, and `foreign_interval` seconds have passed.
    """

    def __init__(self, goal: Goal, applied: Lsn, foreign_bytes: int, foreign_interval: float) -> None:
        self.goal = goal
        self.caught_up = applied
        """Everything in the stream up to this position is published."""
        self._awaited_lsn = Lsn(0)
        self._poll_interval = _FIRST_POLL_INTERVAL
        self._foreign_bytes = foreign_bytes
        self._foreign_interval = foreign_interval
        self._published_at = time.monotonic()

    def want(self, lsn: Lsn) -> None:
        """A client waits for the frontier to reach `lsn`."""
        if lsn > self._awaited_lsn:
            self._awaited_lsn = lsn
            self._poll_interval = _FIRST_POLL_INTERVAL

    def reached(self, lsn: Lsn) -> None:
        """The stream has caught up with WAL to `lsn`."""
        self.caught_up = max(self.caught_up, lsn)

    def has_waiters(self, frontier: Lsn) -> bool:
        """Whether a client waits for a position beyond `frontier`."""
        return self._awaited_lsn > frontier

    @property
    def poll_interval(self) -> float:
        """Seconds to wait for work. Short while the wanted position is beyond the server's last answer, because the
        server has to be asked again."""
        return self._poll_interval if max(self._awaited_lsn, self.goal.until or Lsn(0)) > self.caught_up else _IDLE_WAIT

    def waited(self) -> None:
        """No work came for `poll_interval` seconds."""
        self._poll_interval = min(2 * self._poll_interval, _IDLE_WAIT)

    def due(self, frontier: Lsn, recorded_at: Lsn) -> bool:
        """Whether the frontier has to move from `frontier` to `caught_up`. `recorded_at`: a position behind the commit
        of the last publish of this session that moved the frontier; 0 before the first."""
        until = self.goal.until
        return (
            frontier < self._awaited_lsn <= self.caught_up
            or (until is not None and frontier < until <= self.caught_up)
            or (
                self.caught_up - max(frontier, recorded_at) >= self._foreign_bytes
                and time.monotonic() - self._published_at >= self._foreign_interval
            )
        )

    def served(self) -> None:
        """The frontier is being moved to `caught_up`."""
        self._published_at = time.monotonic()
