"""What the slot may be told: the newest frontier whose publish the stream has passed.

A frontier is recorded in the database by the commit of its publish, which is further back in the WAL than the frontier
itself. Were the slot told at once, a standby could have the slot's new position without that commit. Once promoted, its
slot would be ahead of its catalog, and the transactions between the two would never be sent again. The server sends WAL
to a failover slot only after the standbys in synchronized_standby_slots have it. So once the stream has passed the
commit of a publish, each of these standbys has it too.
"""

from __future__ import annotations

from collections import deque

from mirror_pump.model import Lsn


class Acknowledgement:
    """`landed` may be called from any thread; everything else belongs to the thread that reads the stream."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Lsn, Lsn]] = deque()
        """Frontiers, with a position behind the commit of their publish. Both only grow."""
        self._frontier = Lsn(0)

    @property
    def frontier(self) -> Lsn:
        """What the slot may be told. 0, which the server ignores, if that is nothing yet."""
        return self._frontier

    def landed(self, frontier: Lsn, recorded_at: Lsn) -> None:
        """A publish has landed: its commit is before `recorded_at`."""
        self._waiting.append((frontier, recorded_at))

    def passed(self, position: Lsn) -> None:
        """The server has sent everything before `position`."""
        while self._waiting and self._waiting[0][1] <= position:
            self._frontier = max(self._frontier, self._waiting.popleft()[0])
