"""Lands the next state of lake tables: the only loop that stages again after a conflict.

Read what the catalog has, stage the next state on it, take the slot's lock, look again, move the pointers and record,
COMMIT. Publishes and all other landings wait for the lock. So what takes long is done before: a store may take half a
minute for one file. If the tables have moved when the lock is there, nothing was done, and the next state is staged
again. Publishes may come faster than anything is staged beside them. So the last try stages under the lock, if that
was quick so far. No other program, which might be busy or slow, is waited for.

A kill at any moment leaves the tables as they were, or as they shall be (mirror_pump.pipeline.landing.written_files).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from mirror_pump.errors import CommitConflict, SourceError
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.connect import PgConnection, source_errors

Base = TypeVar("Base")
Next = TypeVar("Next")


class Landing(ABC, Generic[Base, Next]):
    """One landing. Subclasses say what is read, staged and moved."""

    tries = 4
    """How often the next state is staged, if other writers come in between."""
    late_tries = 1
    """How many of the last tries may stage under the lock."""
    stopped_seconds: int | None = 10
    """If this process is stopped while it holds the lock, the server ends its session after this time. None: it does
    not, since the session is watched."""
    quick_seconds = 5.0
    """If each staging took less than that, a late one may be under the lock."""

    def __init__(self, connection: PgConnection, slot: str, files: WrittenFiles, doing: str) -> None:
        """`files`: their owner removes them if this does not land. Those that it has when `land` begins belong to every
        try. `doing` completes "while ..." in errors."""
        self.connection = connection
        self.slot = slot
        self.files = files
        self.doing = doing
        self._given = frozenset[str]()

    @abstractmethod
    def look(self) -> Base:
        """The state that the catalog has. Raises CommitConflict if nothing can land on it now."""

    @abstractmethod
    def stage(self, base: Base) -> Next:
        """Writes the next state, with files that belong to `files`."""

    @abstractmethod
    def swap(self, lock: SlotLock, base: Base, state: Next) -> None:
        """Moves the pointers from the base to the next state, and records it. Raises CommitConflict."""

    def read(self) -> Base:
        """As `look`, without the lock: other engines' commits may be settled first."""
        return self.look()

    def has_moved(self, base: Base, current: Base) -> bool:
        """Whether what was staged on the base does not fit the state that the catalog has now."""
        return current != base

    def transaction(self) -> AbstractContextManager[None]:
        """The transaction that holds the lock to its end."""
        return self.files.committing(self.connection, self.connection.cancel)

    def take_lock(self) -> SlotLock:
        """Raises an error if this process may not land anything now."""
        return SlotLock.take(self.connection, self.slot, self.stopped_seconds)

    def supersede(self, _conflict: CommitConflict) -> None:
        """Nothing was done, and the next state is staged again: by default from nothing."""
        self.start_over()

    def start_over(self) -> None:
        """The files of all tries go."""
        self.files.supersede(self.files.locations - self._given)

    def stage_late(self, base: Base) -> Next:
        """On a late try, under the lock: the tables have moved once more."""
        return self.stage(base)

    def pause(self, conflicts: int) -> None:
        """Waits before another try, after so many conflicts in a row. By default there is no wait."""

    def has_landed(self, error: SourceError) -> bool:
        """The connection was lost during COMMIT: whether that happened. By default nothing tells: raises the error."""
        raise error

    def land(self) -> Next:
        """Returns the state that landed. Raises CommitConflict if other writers commit all the time, SourceError, and
        what the subclass raises: then nothing has landed, unless `files.may_have_landed`."""
        seconds, self._given = 0.0, self.files.locations
        for tries_left in range(self.tries - 1, -1, -1):
            try:
                with source_errors(self.doing):
                    base = self.read()
                began = time.monotonic()
                state = self.stage(base)
                seconds = max(seconds, time.monotonic() - began)
                return self._commit(base, state, late=tries_left < self.late_tries and seconds < self.quick_seconds)
            except CommitConflict as conflict:
                if not tries_left or self.files.may_have_landed:
                    raise
                self.supersede(conflict)
                self.files.remove_superseded()
                self.pause(self.tries - tries_left)
        raise AssertionError("the last try returns or raises")

    def _commit(self, base: Base, state: Next, *, late: bool) -> Next:
        """`late`: if the tables have moved once more, the next state is staged under the lock."""
        try:
            with source_errors(self.doing), self.transaction():
                lock = self.take_lock()
                current = self.look()
                if self.has_moved(base, current):
                    conflict = CommitConflict(f"another writer committed to the lake, seen while {self.doing}")
                    if not late:
                        raise conflict
                    self.supersede(conflict)
                    state = self.stage_late(current)
                self.swap(lock, current, state)
        except SourceError as error:
            if not self.files.may_have_landed:
                raise
            self.files.may_have_landed = self.has_landed(error)
            if not self.files.may_have_landed:
                raise
            self.files.keep()
        return state
