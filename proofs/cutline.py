"""Heap retention of one row beside a reader: the cut-line, corrections, folds, the drop (promises 4 and 5).

Versions of the row are numbers. The row is never deleted, so a reader that finds none has lost it. A reader with one
database snapshot sees one state of the database, but for a partition that is dropped meanwhile, and files that are
deleted. A reader without takes the cut-line once, and reads heap and corrections later, each as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

WRITES = 3
SEALED = "the cut-line advances once the frontier has passed the partition's seal"
CAPTURED = "changes since the seal become corrections when the cut-line advances"
VERSION = "a fold marks a correction only in the version that was folded"
CLEARED = "folded corrections stay while the table has a pin, committed or not"
PINNED = "a partition is not dropped under a pin below its upper bound"
MAKING = "a drop waits for transactions that may have read the former cut-line"
EXPIRED = "a snapshot's files are not deleted under a pin of it"
LOOK = "a reader looks, after it has pinned a snapshot, whether it is there"
AGAIN = "a reader begins again if its database snapshot shows another cut-line than it has pinned"
GUARDS = {
    SEALED: "promise 4",
    CAPTURED: "promise 4",
    VERSION: "promise 4",
    CLEARED: "promise 4",
    PINNED: "promise 4",
    MAKING: "promise 4",
    EXPIRED: "promise 5",
    LOOK: "promise 5",
    AGAIN: "promise 4",
}


class Phase(Enum):
    """What the reader has done."""

    NOTHING = auto()
    CUTLINE = auto()
    """It has read the cut-line; its pin is not committed."""
    PINNED = auto()
    SNAPSHOT = auto()
    """It has a database snapshot."""
    ENDED = auto()


@dataclass(frozen=True)
class Correction:
    """A row of modak.delta."""

    version: int
    folded: bool = False


@dataclass(frozen=True)
class Reader:
    """A reader of the row."""

    phase: Phase = Phase.NOTHING
    passed: bool = False
    """The cut-line that it has read is above the row."""
    archive: int = 0
    """The snapshot that it has read, by its place in `archives`."""
    heap: int = 0
    correction: Correction | None = None
    """The heap's version, and the correction, of its database snapshot."""
    versions: frozenset[int] = frozenset()
    """What it may see: the row's version in its database snapshot, or, without one, the versions since it began."""


@dataclass(frozen=True)
class Retention:
    """A state of the partition, the lake and a reader."""

    one_snapshot: bool | None = None
    """Whether the reader has one database snapshot. None: it has not begun."""
    version: int = 1
    heap: int = 1
    """The row in its partition. 0: the partition is dropped."""
    stream: tuple[int, ...] = (1,)
    """The versions that were written to the heap."""
    frontier: int = 1
    """How many of them are in branch main."""
    seal: int | None = None
    """The end of the stream when the partition was sealed."""
    captured: int | None = None
    """The version of a change since the seal."""
    passed: bool = False
    """The cut-line is above the row."""
    archives: tuple[int, ...] = ()
    """The row's versions in the published snapshots since."""
    expired: frozenset[int] = frozenset()
    correction: Correction | None = None
    fold: int | None = None
    """The version that a fold has read."""
    reader: Reader = Reader()
    wrong: str = ""

    def broken(self) -> Iterator[str]:
        """What the reader has found is the row, once."""
        if self.wrong:
            yield self.wrong

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, Retention]]:
        """What writers, the pump and the reader may do next."""
        if self.version <= WRITES:
            yield "the row is written", self._written(self.version + 1)
        if self.frontier < len(self.stream) and not self.passed:
            yield "a change is published", replace(self, frontier=self.frontier + 1)
        if self.seal is None:
            yield "the partition is sealed", replace(self, seal=len(self.stream))
        elif not self.passed and (self.frontier >= self.seal or SEALED not in guards):
            yield "the cut-line advances", self._advanced(guards)
        if self.passed:
            yield from self._folds(guards)
            yield from self._removals(guards)
        yield from self._reads(guards)

    def _written(self, version: int) -> Retention:
        reader = self.reader
        if reader.phase in {Phase.CUTLINE, Phase.PINNED}:
            reader = replace(reader, versions=reader.versions | {version})
        state = replace(self, version=version, reader=reader)
        if self.passed:
            return replace(state, correction=Correction(version))
        captured = self.captured if self.seal is None else version
        return replace(state, heap=version, stream=(*self.stream, version), captured=captured)

    def _advanced(self, guards: frozenset[str]) -> Retention:
        correction = Correction(self.captured) if self.captured is not None and CAPTURED in guards else None
        archives = (*self.archives, self.stream[self.frontier - 1])
        return replace(self, passed=True, archives=archives, correction=correction)

    def _folds(self, guards: frozenset[str]) -> Iterator[tuple[str, Retention]]:
        correction = self.correction
        if correction is not None and not correction.folded and self.fold is None:
            yield "a fold begins", replace(self, fold=correction.version)
        if self.fold is not None:
            is_folded = correction is not None and (correction.version == self.fold or VERSION not in guards)
            marked = replace(correction, folded=True) if correction is not None and is_folded else correction
            yield "the fold lands", replace(self, archives=(*self.archives, self.fold), correction=marked, fold=None)
        pinned = self._has_pin() or self.reader.phase is Phase.CUTLINE
        if correction is not None and correction.folded and not (pinned and CLEARED in guards):
            yield "the correction is cleared", replace(self, correction=None)

    def _removals(self, guards: frozenset[str]) -> Iterator[tuple[str, Retention]]:
        reader = self.reader
        pinned = self._has_pin() and not reader.passed and PINNED in guards
        making = reader.phase is Phase.CUTLINE and not reader.passed and MAKING in guards
        if self.heap and not pinned and not making:
            yield "the partition is dropped", replace(self, heap=0)
        for archive in range(len(self.archives) - 1):
            held = self._has_pin() and reader.passed and reader.archive == archive and EXPIRED in guards
            if archive not in self.expired and not held:
                yield f"snapshot {archive + 1} expires", replace(self, expired=self.expired | {archive})

    def _has_pin(self) -> bool:
        return self.reader.phase in {Phase.PINNED, Phase.SNAPSHOT}

    def _reads(self, guards: frozenset[str]) -> Iterator[tuple[str, Retention]]:
        reader = self.reader
        if reader.phase is Phase.NOTHING:
            versions = frozenset({self.version})
            begun = Reader(Phase.CUTLINE, self.passed, len(self.archives) - 1, versions=versions)
            for one_snapshot in (True, False):
                if self.one_snapshot in {one_snapshot, None}:
                    which = "with one snapshot" if one_snapshot else "with many snapshots"
                    yield f"a reader {which} reads the cut-line", replace(self, one_snapshot=one_snapshot, reader=begun)
        elif reader.phase is Phase.CUTLINE:
            yield "the reader's pin commits", replace(self, reader=replace(reader, phase=Phase.PINNED))
        elif reader.phase is Phase.PINNED:
            if reader.passed and reader.archive in self.expired and LOOK in guards:
                yield "the reader begins again", replace(self, reader=Reader())
            elif not self.one_snapshot:
                yield "the reader reads", self._found(self.heap, self.correction)
            elif AGAIN in guards and (reader.passed, reader.archive) != (self.passed, len(self.archives) - 1):
                yield "the reader begins again", replace(self, reader=Reader())
            else:
                yield "the reader takes its database snapshot", replace(self, reader=self._with_snapshot())
        elif reader.phase is Phase.SNAPSHOT:
            # A dropped partition has no rows, whatever the snapshot says.
            yield "the reader reads", self._found(reader.heap if self.heap else 0, reader.correction)

    def _with_snapshot(self) -> Reader:
        return replace(
            self.reader,
            phase=Phase.SNAPSHOT,
            heap=self.heap,
            correction=self.correction,
            versions=frozenset({self.version}),
        )

    def _found(self, heap: int, correction: Correction | None) -> Retention:
        """What the reader makes of the heap's version and of the correction."""
        reader, wrong = self.reader, ""
        ended = replace(self, reader=replace(reader, phase=Phase.ENDED))
        if not reader.passed:
            wrong = "" if heap in reader.versions else "promise 4"
        elif reader.archive in self.expired:
            wrong = "promise 5"
        elif correction is not None:
            wrong = "" if correction.version in reader.versions else "promise 4"
        elif self.archives[reader.archive] not in reader.versions:
            wrong = "promise 4"
        return replace(ended, wrong=wrong)
