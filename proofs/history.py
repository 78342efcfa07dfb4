"""A table's history: publishes add snapshots, an expiry takes one away, a moment keeps one, a reader reads one (I5).

Each of them is computed from the metadata that it has read, and lands later. The snapshot in question is number 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

PUBLISHES = 2
POINTER = "a pointer moves only from the metadata that was staged on"
HISTORY = "an expiry takes the snapshot out of the history before it deletes files"
PINS = "an expiry looks at pins and moments again before it deletes files"
LOOK = "a reader looks for the snapshot after its pin has committed"
AGAIN = "a moment is entered if the snapshot is still there under the lock"
GUARDS = {POINTER: "I5", HISTORY: "I5", PINS: "I5", LOOK: "I5", AGAIN: "I5"}


class Phase(Enum):
    """How far a program has come."""

    NOTHING = auto()
    READ = auto()
    """It has read the metadata. A reader has chosen the snapshot."""
    MOVED = auto()
    """An expiry has taken the snapshot out of the history. A reader's pin has committed."""
    READS = auto()
    """A reader has looked for the snapshot and reads it. An expiry has looked at pins, and deletes files."""
    ENDED = auto()


@dataclass(frozen=True)
class Metadata:
    """A metadata file."""

    number: int = 0
    has_snapshot: bool = True


@dataclass(frozen=True)
class Program:
    """A program that works on the table."""

    phase: Phase = Phase.NOTHING
    metadata: Metadata = Metadata()
    """What it has read."""


@dataclass(frozen=True)
class History:
    """A state of the table and of the four programs."""

    current: Metadata = Metadata()
    newest: int = 0
    """The highest number of a metadata file."""
    deleted: bool = False
    """The snapshot's files are deleted."""
    kept: bool = False
    """A moment has the snapshot."""
    publishes: int = 0
    pump: Program = Program()
    expiry: Program = Program()
    keeper: Program = Program()
    reader: Program = Program()

    def broken(self) -> Iterator[str]:
        """I5: what a moment keeps, the current metadata names, or a reader reads is there."""
        named = self.kept or self.current.has_snapshot or self.reader.phase is Phase.READS
        if (named and self.deleted) or (self.kept and not self.current.has_snapshot):
            yield "I5"

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, History]]:
        """What the programs may do next."""
        yield from self._publishes(guards)
        yield from self._expiry(guards)
        yield from self._keeps(guards)
        yield from self._reads(guards)

    def _publishes(self, guards: frozenset[str]) -> Iterator[tuple[str, History]]:
        if self.pump.phase is Phase.NOTHING and self.publishes < PUBLISHES:
            counted = replace(self, publishes=self.publishes + 1)
            yield "a publish is staged", replace(counted, pump=Program(Phase.READ, self.current))
        elif self.pump.phase is Phase.READ:
            yield "the publish lands", replace(self._moved(self.pump.metadata, guards), pump=Program())

    def _expiry(self, guards: frozenset[str]) -> Iterator[tuple[str, History]]:
        expiry = self.expiry
        protected = self._is_protected()
        if expiry.phase is Phase.NOTHING and not protected and self.current.has_snapshot:
            yield "an expiry begins", replace(self, expiry=Program(Phase.READ, self.current))
        elif expiry.phase is Phase.READ:
            if HISTORY not in guards:
                yield "the expiry deletes files", replace(self, deleted=True, expiry=Program(Phase.ENDED))
            else:
                moved = self._moved(replace(expiry.metadata, has_snapshot=False), guards)
                phase = Phase.ENDED if moved is self else Phase.MOVED
                yield "the expiry takes the snapshot out", replace(moved, expiry=replace(expiry, phase=phase))
        elif expiry.phase is Phase.MOVED:
            phase = Phase.ENDED if protected and PINS in guards else Phase.READS
            yield "the expiry looks at pins", replace(self, expiry=replace(expiry, phase=phase))
        elif expiry.phase is Phase.READS:
            yield "the expiry deletes files", replace(self, deleted=True, expiry=Program(Phase.ENDED))

    def _is_protected(self) -> bool:
        return self.kept or self.reader.phase in {Phase.MOVED, Phase.READS}

    def _keeps(self, guards: frozenset[str]) -> Iterator[tuple[str, History]]:
        keeper = self.keeper
        if keeper.phase is Phase.NOTHING and self.current.has_snapshot:
            yield "a moment is staged", replace(self, keeper=Program(Phase.READ, self.current))
        elif keeper.phase is Phase.READ:
            base = keeper.metadata if AGAIN not in guards else self.current
            ended = replace(self, keeper=replace(keeper, phase=Phase.ENDED))
            if base.has_snapshot:
                # Its tag is added to what is current; without the other look, to what was read.
                kept = ended._moved(base, guards if AGAIN in guards else guards - {POINTER})
                yield "the moment is entered", replace(kept, kept=True)
            else:
                yield "the moment is refused", ended

    def _reads(self, guards: frozenset[str]) -> Iterator[tuple[str, History]]:
        reader = self.reader
        if reader.phase is Phase.NOTHING and self.current.has_snapshot:
            yield "a reader chooses the snapshot", replace(self, reader=Program(Phase.READ, self.current))
        elif reader.phase is Phase.READ:
            yield "the reader's pin commits", replace(self, reader=replace(reader, phase=Phase.MOVED))
        elif reader.phase is Phase.MOVED:
            metadata = self.current if LOOK in guards else reader.metadata
            phase = Phase.READS if metadata.has_snapshot else Phase.ENDED
            yield "the reader looks for the snapshot", replace(self, reader=replace(reader, phase=phase))
        elif reader.phase is Phase.READS:
            yield "the reader ends", replace(self, reader=replace(reader, phase=Phase.ENDED))

    def _moved(self, metadata: Metadata, guards: frozenset[str]) -> History:
        """The state after a pointer has moved to metadata that continues what a program had read; this state if another
        program moved it before."""
        if POINTER in guards and metadata.number != self.current.number:
            return self
        number = self.newest + 1
        return replace(self, current=replace(metadata, number=number), newest=number)
