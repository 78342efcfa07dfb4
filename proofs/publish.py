"""Publishing from a stream: two pumps of which one leads, connections that break during COMMIT, another engine.

The stream has transactions 1, 2, ..., each of which changes both tables. The first table has a change feed. A table, or
the feed, contains the transactions that it has, in the order in which they were added, and 0 for a row that another
engine added. A pointer is the number of a metadata file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

TRANSACTIONS = 2
MOST_STARTS = 3
MOST_REWRITES = 1
EPOCH = "a publish checks the leader's epoch"
POINTER = "a pointer moves only from the metadata that was staged on"
ONE_COMMIT = "pointers and the frontier move in one COMMIT"
LOOK = "after an unknown COMMIT the pump looks whether it happened"
WAIT = "that look waits for the old backend's end"
LANDED = "only a landed publish is acknowledged"
EXAMINED = "what another engine committed is examined before a publish builds on it"
TOGETHER = "a feed is published in the COMMIT of its table"
GUARDS = {
    EPOCH: "I1",
    POINTER: "I5",
    ONE_COMMIT: "I1",
    LOOK: "I1",
    WAIT: "I1",
    LANDED: "I3",
    EXAMINED: "I6",
    TOGETHER: "I7",
}

Contents = tuple[int, ...]
Tables = tuple[Contents, Contents, Contents]
"""Of both tables, and of the feed."""
FOREIGN = 0
"""Another engine's row."""


class Phase(Enum):
    """What a pump does."""

    IDLE = auto()
    """It leads, or believes that it does."""
    STAGED = auto()
    """Its batch is in files, and it knows from which pointers they continue."""
    MOVED = auto()
    """It has moved the pointers in a COMMIT of their own: without ONE_COMMIT only."""
    UNKNOWN = auto()
    """The connection broke during COMMIT."""
    ENDED = auto()


@dataclass(frozen=True)
class Pump:
    """A process."""

    phase: Phase = Phase.ENDED
    epoch: int = 0
    position: int = 0
    """The end of what it has published, as it knows."""
    batch: int = 0
    """The end of its batch, which begins at `position`."""
    staged_on: tuple[int, int] = (0, 0)
    """The pointers of both tables."""
    staged_contents: Tables = ((), (), ())
    """What the tables have by the staged metadata."""
    staged_layout: int = 0
    """The layout of table 1 that this metadata names."""


@dataclass(frozen=True)
class Publishing:
    """A state of the database, the lake and two pumps."""

    pointers: tuple[int, int] = (0, 0)
    contents: Tables = ((), (), ())
    frontier: int = 0
    confirmed: int = 0
    """What the slot was told: earlier transactions are not sent again."""
    epoch: int = 0
    publisher: tuple[int, int] | None = None
    """`publish_id`: which pump's publish was the last, and up to where."""
    backend: tuple[int, Pump] | None = None
    """A COMMIT that is still at work in the server, without a connection, and holds the slot's lock."""
    layout: int = 0
    """Which files table 1 has: how often another engine had rewritten them. Those of a former layout are deleted."""
    foreign: bool = False
    """Another engine's row is in table 1, and no publish has landed since."""
    lowered: bool = False
    pumps: tuple[Pump, Pump] = (Pump(), Pump())
    starts: int = 0
    rewrites: int = 0

    def broken(self) -> Iterator[str]:
        """The invariants, in the words of docs/proof.md."""
        expected = tuple(range(1, self.frontier + 1))
        if self.confirmed > self.frontier:
            yield "I3"
        if not self.foreign:
            if FOREIGN in self.contents[0]:
                yield "I6"
            elif self.contents[:2] != (expected, expected):
                yield "I1"
        if self.contents[2] != expected:
            yield "I7"
        if self.layout < self.rewrites:
            yield "I5"
        if self.lowered:
            yield "promise 3"

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, Publishing]]:
        """What the server, another engine, and each pump may do next."""
        if self.backend is not None:
            yield "the server ends the COMMIT", replace(self._landed(*self.backend, guards), backend=None)
            yield "the server rolls back", replace(self, backend=None)
        elif self.rewrites < MOST_REWRITES:
            pointers, number = (self.pointers[0] + 1, self.pointers[1]), self.rewrites + 1
            yield "another engine rewrites table 1", replace(self, pointers=pointers, layout=number, rewrites=number)
            if FOREIGN not in self.contents[0]:
                contents = ((*self.contents[0], FOREIGN), *self.contents[1:])
                yield "another engine adds a row", replace(self, pointers=pointers, contents=contents, foreign=True)
        for number in (0, 1):
            yield from self._steps_of(number, guards)

    def _steps_of(self, number: int, guards: frozenset[str]) -> Iterator[tuple[str, Publishing]]:
        pump, name = self.pumps[number], f"pump {number + 1}"
        if pump.phase is not Phase.ENDED:
            yield f"{name} is killed", self._with(number, Pump())
        elif self.starts < MOST_STARTS and self.backend is None:
            # The former leader's session has ended in the server, which its process may not know. To lead means to
            # write the slot's row, so it waits for the row's lock.
            position = max(self.frontier, self.confirmed)
            leader = Pump(Phase.IDLE, self.epoch + 1, position, position)
            yield f"{name} leads", replace(self, epoch=self.epoch + 1, starts=self.starts + 1)._with(number, leader)
        if pump.phase is Phase.IDLE:
            for end in range(pump.position + 1, TRANSACTIONS + 1):
                yield f"{name} stages up to {end}", self._staged(number, end, guards)
        if pump.phase is Phase.MOVED:
            frontier = replace(self, frontier=max(self.frontier, pump.batch))
            yield f"{name} moves the frontier", frontier._acknowledged(number)
        if pump.phase is Phase.STAGED and self.backend is None:
            yield from self._commit(number, guards)
        if pump.phase is Phase.UNKNOWN and (self.backend is None or WAIT not in guards):
            if LOOK in guards and self.publisher == (number, pump.batch):
                yield f"{name} finds its publish", self._acknowledged(number)
            else:
                yield f"{name} stages again", self._staged(number, pump.batch, guards)

    def _commit(self, number: int, guards: frozenset[str]) -> Iterator[tuple[str, Publishing]]:
        """The pump locks the slot's row, and publishes if its checks pass."""
        pump, name = self.pumps[number], f"pump {number + 1}"
        if EPOCH in guards and pump.epoch != self.epoch:
            yield f"{name} learns that it does not lead", self._with(number, Pump())
        elif POINTER in guards and pump.staged_on != self.pointers:
            yield f"{name} stages again", self._staged(number, pump.batch, guards)
        elif ONE_COMMIT not in guards:
            pointers = (self.pointers[0] + 1, self.pointers[1] + 1)
            moved = replace(
                self, pointers=pointers, contents=pump.staged_contents, layout=pump.staged_layout, foreign=False
            )
            yield f"{name} moves the pointers", moved._with(number, replace(pump, phase=Phase.MOVED))
        else:
            yield f"{name} commits", self._landed(number, pump, guards)._acknowledged(number)
            unknown = self._with(number, replace(pump, phase=Phase.UNKNOWN))
            yield f"{name} loses its connection during COMMIT", replace(unknown, backend=(number, pump))

    def _staged(self, number: int, end: int, guards: frozenset[str]) -> Publishing:
        pump = self.pumps[number]
        batch = tuple(range(pump.position + 1, end + 1))
        first, second, feed = self.contents
        if EXAMINED in guards:
            first = tuple(row for row in first if row != FOREIGN)
        # Without the guard, the feed is written by the next publish.
        changes = batch if TOGETHER in guards else tuple(range(len(feed) + 1, pump.position + 1))
        contents = (first + batch, second + batch, feed + changes)
        state = self._with(
            number,
            replace(
                pump,
                phase=Phase.STAGED,
                batch=end,
                staged_on=self.pointers,
                staged_contents=contents,
                staged_layout=self.layout,
            ),
        )
        return state if LANDED in guards else replace(state, confirmed=max(state.confirmed, end))

    def _landed(self, number: int, pump: Pump, guards: frozenset[str]) -> Publishing:
        """The COMMIT of a pump's publish happens in the server."""
        if POINTER in guards and pump.staged_on != self.pointers:
            return self
        return replace(
            self,
            pointers=(self.pointers[0] + 1, self.pointers[1] + 1),
            contents=pump.staged_contents,
            layout=pump.staged_layout,
            foreign=False,
            publisher=(number, pump.batch),
            frontier=pump.batch,
            lowered=pump.batch < self.frontier,
        )

    def _acknowledged(self, number: int) -> Publishing:
        pump = self.pumps[number]
        state = self._with(number, replace(pump, phase=Phase.IDLE, position=pump.batch))
        return replace(state, confirmed=max(state.confirmed, pump.batch))

    def _with(self, number: int, pump: Pump) -> Publishing:
        pumps = (pump, self.pumps[1]) if number == 0 else (self.pumps[0], pump)
        return replace(self, pumps=pumps)
