"""The initial copy of a table beside its stream, seen by one key (I2).

The row is in one of two blocks, and each chunk of the copy reads a block in a database snapshot of its own. An UPDATE
may move the row to the other block. Versions of the row are numbers, and 0 is no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

WRITES = 3
LOCK = "registration waits until the table's writers have ended"
BACKDATED = "copied rows have the table's start sequence number"
DELETES = "each change of a table that is being copied deletes its key, also an INSERT"
LIVE = "the table goes live once the frontier has passed the end of the WAL after the last chunk"
AGAIN = "what moves rows without a row event begins the copy again"
GUARDS = {LOCK: "I2", BACKDATED: "I2", DELETES: "I2", LIVE: "I2", AGAIN: "I2"}


@dataclass(frozen=True)
class Change:
    """A transaction's change of the row, in the order of the commits."""

    version: int
    """0: a DELETE."""
    inserts: bool
    sent: bool
    """The publication had the table when the row was written."""


@dataclass(frozen=True)
class Chunk:
    """What a chunk has read."""

    version: int
    wal_end: int
    """The end of the WAL after it was read, in changes."""
    landed: bool = False


@dataclass(frozen=True)
class Copying:
    """A state of the table, its stream and its lake table."""

    version: int = 1
    block: int = 0
    writer: bool = False
    """A transaction has changed the row before the registration, and is open."""
    registered: int | None = None
    """The row's version at the registration."""
    history: tuple[Change, ...] = ()
    """Since the registration."""
    frontier: int = 0
    """How many of these changes are published."""
    chunks: tuple[Chunk | None, Chunk | None] = (None, None)
    rows: tuple[tuple[int, int], ...] = ()
    """Rows of data files: version and sequence number."""
    deletes: frozenset[int] = frozenset()
    """Sequence numbers of equality deletes of the key."""
    live: bool = False
    writes: int = 0
    moves: int = 0

    def broken(self) -> Iterator[str]:
        """I2: a live table has the row as of the frontier, once."""
        if self.live and self.registered is not None:
            version = self.history[self.frontier - 1].version if self.frontier else self.registered
            if sorted(self._visible()) != ([version] if version else []):
                yield "I2"

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, Copying]]:
        """What writers, VACUUM FULL, the copy and the stream may do next."""
        yield from self._writes()
        if self.registered is None:
            if not (self.writer and LOCK in guards):
                yield "the table is registered", replace(self, registered=self.version)
            return
        if self.moves < 1 and not self.live:
            moved = replace(self, block=1 - self.block, moves=1)
            if AGAIN in guards:
                moved = replace(moved, chunks=(None, None), rows=(), deletes=frozenset())
                # The new start position is behind all changes: the lake table is empty until its chunks come.
                moved = replace(moved, registered=self.version, history=(), frontier=0)
            yield "VACUUM FULL moves the row", moved
        for number, chunk in enumerate(self.chunks):
            if chunk is None:
                version = self.version if self.block == number else 0
                yield f"chunk {number + 1} is read", self._with(number, Chunk(version, len(self.history)))
            elif not chunk.landed:
                yield f"chunk {number + 1} lands", self._landed(number, chunk, guards)
        if self.frontier < len(self.history):
            yield "a change is published", self._published(guards)._promoted(guards)
        yield "a publish without changes", self._promoted(guards)

    def _writes(self) -> Iterator[tuple[str, Copying]]:
        if self.writes < WRITES:
            counted = replace(self, writes=self.writes + 1)
            if self.registered is None and not self.writer:
                yield "a transaction changes the row, and stays open", replace(counted, writer=True)
            if not self.writer:
                # Others wait for the row's lock.
                version = self.writes + 2
                yield "the row is written", counted._changed(version, self.block, sent=True)
                if self.version:
                    yield "an UPDATE moves the row", counted._changed(version, 1 - self.block, sent=True)
                    yield "the row is deleted", counted._changed(0, self.block, sent=True)
        if self.writer:
            ended = replace(self, writer=False)
            yield "the open transaction commits", ended._changed(WRITES + 2, self.block, sent=False)

    def _changed(self, version: int, block: int, *, sent: bool) -> Copying:
        changed = replace(self, version=version, block=block)
        if self.registered is None:
            return changed
        return replace(changed, history=(*self.history, Change(version, not self.version, sent)))

    def _published(self, guards: frozenset[str]) -> Copying:
        """The next change is a segment of its own: its row is not hidden by its delete, and all earlier ones are."""
        change, number = self.history[self.frontier], self.frontier + 1
        passed = replace(self, frontier=self.frontier + 1)
        if not change.sent:
            return passed
        deletes = self.deletes | {number} if DELETES in guards or not change.inserts else self.deletes
        rows = (*self.rows, (change.version, number)) if change.version else self.rows
        return replace(passed, rows=rows, deletes=deletes)

    def _landed(self, number: int, chunk: Chunk, guards: frozenset[str]) -> Copying:
        state = self._with(number, replace(chunk, landed=True))
        if not chunk.version:
            return state
        # Without the guard, a chunk has the number of its publish, like every other file.
        row = chunk.version, 0 if BACKDATED in guards else self.frontier + 1
        return replace(state, rows=(*self.rows, row))

    def _promoted(self, guards: frozenset[str]) -> Copying:
        """The state after a publish, which may be that from which on the table is live."""
        chunks = [chunk for chunk in self.chunks if chunk is not None and chunk.landed]
        passed = all(chunk.wal_end <= self.frontier for chunk in chunks) or LIVE not in guards
        return replace(self, live=True) if len(chunks) == len(self.chunks) and passed else self

    def _visible(self) -> list[int]:
        """The row's versions that a reader sees: an equality delete hides rows of lower numbers."""
        return [version for version, number in self.rows if not any(number < delete for delete in self.deletes)]

    def _with(self, number: int, chunk: Chunk) -> Copying:
        return replace(self, chunks=(chunk, self.chunks[1]) if number == 0 else (self.chunks[0], chunk))
