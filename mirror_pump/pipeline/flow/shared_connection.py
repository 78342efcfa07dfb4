"""One connection for the short queries that several threads of a session make now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirror_pump.source.connect import PgConnection


class SharedConnection:
    """A connection that is opened when it is first needed, and that one thread at a time uses."""

    def __init__(self, connect: Callable[[], PgConnection]) -> None:
        """`connect` opens a connection in autocommit mode."""
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: PgConnection | None = None

    @contextmanager
    def use(self) -> Iterator[PgConnection]:
        """The connection for the block, for which others wait: it makes queries that need no lock, and waits for
        nothing else. Raises SourceError if it cannot be opened."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    def close(self) -> None:
        """Close the connection once nobody uses it any more."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
