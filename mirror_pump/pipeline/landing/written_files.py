"""The files that were written for the next state of lake tables, and what becomes of them.

Invariant: no file is removed here that the catalog may name. Until its COMMIT is sent, a transaction certainly fails
with the program or the connection, and so it does if the server refuses the COMMIT: then the files go. Otherwise they
stay, even if no answer came. Those of a process that dies are orphans, which a sweep removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

import psycopg

from mirror_pump.database.errors import is_connection_loss
from mirror_pump.errors import LakeError
from mirror_pump.lake.storage import StorageOptions, delete_tree, discard, write_all
from mirror_pump.runtime.interrupts import deferred_interrupt
from mirror_pump.source.connect import PgConnection


class WrittenFiles:
    """The files of states that have not landed. Leaving it as a context manager removes them. Belongs to one thread,
    except for `add` and `write`."""

    def __init__(self, storage: StorageOptions) -> None:
        self.storage = storage
        self._files: set[str] = set()
        self._superseded: set[str] = set()
        self._tables: set[str] = set()
        """Locations of new tables."""
        self._superseded_tables: set[str] = set()
        self.may_have_landed = False
        """COMMIT was sent, and the server has not refused it."""

    @property
    def locations(self) -> frozenset[str]:
        """URIs of the files that go if nothing lands."""
        return frozenset(self._files)

    def add(self, *locations: str) -> None:
        """Adds files by their URIs, which are written or being written."""
        self._files.update(locations)

    def add_table(self, location: str) -> None:
        """Adds a new table, before anything is written below its location: all of that goes if the table does not
        land."""
        self._tables.add(location)

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Writes files, which are durable then. Raises LakeError."""
        self.add(*(location for location, _ in files))
        write_all(files, self.storage)

    def supersede(self, locations: Iterable[str]) -> None:
        """Another state lands, or none: these files go, once no lock is held."""
        superseded = self._files.intersection(locations)
        self._files -= superseded
        self._superseded |= superseded

    def supersede_table(self, location: str) -> None:
        """As `supersede`, of a new table."""
        self._tables.discard(location)
        self._superseded_tables.add(location)

    def remove_superseded(self) -> None:
        discard(self._superseded, self.storage)
        self._superseded.clear()
        for location in self._superseded_tables:
            with suppress(LakeError):
                delete_tree(location, self.storage)
        self._superseded_tables.clear()

    @contextmanager
    def committing(self, connection: PgConnection, stop: Callable[[], None]) -> Iterator[None]:
        """A transaction of the connection, whose COMMIT makes the files those of the lake's tables.

        Ctrl-C waits for the answer to COMMIT, and calls `stop` meanwhile; KeyboardInterrupt follows. Raises
        psycopg.Error.
        """
        self.may_have_landed = False
        with ExitStack() as answer:
            try:
                with connection.transaction():
                    yield
                    answer.enter_context(deferred_interrupt(stop))
                    self.may_have_landed = True
            except psycopg.Error as error:
                broken = is_connection_loss(error) or isinstance(error, psycopg.InterfaceError)
                self.may_have_landed = self.may_have_landed and broken
                raise
            self.keep()

    def keep(self) -> None:
        """What the files were written for has landed: they stay."""
        self._files.clear()
        self._tables.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.may_have_landed:
            self.supersede(self.locations)
            self._superseded_tables |= self._tables
        self.remove_superseded()
