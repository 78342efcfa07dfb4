"""What all services of one session share: settings, the database, storage, tasks, and the inbox; and the base of their
threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

import psycopg

from mirror_pump.errors import ExpectedOutcome, FileDamaged, FileMissing, MirrorPumpError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.pipeline.flow.backlog import Backlog
from mirror_pump.pipeline.flow.events import Event, LakeFileMissing, ThreadFailed
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import PgConnection, connect, source_errors

if TYPE_CHECKING:
    # Importing it would load pyspark.
    from mirror_pump.engine.spark_runtime.runner import TaskRunner


@dataclass(frozen=True)
class SessionContext:
    """Created once for each session and passed to each of its threads. The settings name a database and a slot."""

    settings: Settings
    storage: StorageOptions
    runner: TaskRunner
    """Runs tasks, usually in Spark."""
    observer: Observer
    inbox: SimpleQueue[Event]
    """The queue of the session's loop."""
    backlog: Backlog = field(default_factory=Backlog)
    """What waits in the stream, and comes before background work."""
    damaged: SimpleQueue[tuple[TableId, FileDamaged] | None] = field(default_factory=SimpleQueue)
    """What the lake watch records for `status`. None only wakes it."""

    @property
    def dsn(self) -> str:
        """Connection string of the source database."""
        return self.settings.require_dsn()

    @property
    def slot(self) -> str:
        """Name of the replication slot."""
        return self.settings.slot

    def report_file(self, table_id: TableId, error: BaseException) -> None:
        """Hands on that a thread found a file of the table missing or damaged. Does nothing for other errors."""
        if isinstance(error, FileMissing):
            self.inbox.put(LakeFileMissing(table_id, error.location))
        elif isinstance(error, FileDamaged):
            self.damaged.put((table_id, error))

    def connect(self) -> PgConnection:
        """Opens a connection in autocommit mode, which the caller closes. Raises SourceError."""
        return connect(self.dsn, autocommit=True)

    def connect_for_heap(self) -> PgConnection:
        """The same for short reads of users' tables, which wait as long as a user alters one. Raises SourceError."""
        return connect(self.dsn, autocommit=True, lock_timeout="0")


class ThreadStopped(ExpectedOutcome):
    """The thread was asked to stop. It abandons its current work."""


_OF_THE_SESSION = (MirrorPumpError, psycopg.Error, MemoryError)
"""Errors after which only another session can go on."""


def session_thread(
    name: str,
    run: Callable[[], None],
    inbox: SimpleQueue[Event],
    *,
    interrupt: Callable[[], None] | None = None,
    restarts: bool = True,
) -> ServiceThread:
    """Creates a thread of one session. An error that concerns the session reaches the loop as ThreadFailed, and the
    loop raises it. After any other one `run` is called again (ServiceThread), unless it cannot go on where it stopped:
    without `restarts` such an error ends the session too."""

    def reported() -> None:
        try:
            run()
        except ThreadStopped:
            return
        except BaseException as error:
            if restarts and isinstance(error, Exception) and not isinstance(error, _OF_THE_SESSION):
                raise
            inbox.put(ThreadFailed(error))

    return ServiceThread(name, reported, interrupt=interrupt)


class SharedConnection:
    """A connection that several threads use now and then, one at a time. It is opened when it is first needed."""

    def __init__(self, connect: Callable[[], PgConnection]) -> None:
        """`connect` opens a connection in autocommit mode."""
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: PgConnection | None = None
        self._snapshot = ""
        self._snapshot_at = -math.inf
        """When it was taken: time.monotonic(), in seconds."""

    @contextmanager
    def use(self) -> Iterator[PgConnection]:
        """The connection for the block, for which others wait. Raises SourceError if it cannot be opened."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection

    def snapshot(self, interval: float, *, woken: bool = False) -> str:
        """The text of a database snapshot for a thread that looks every `interval` seconds whether anything was
        written (`UnchangedServer`). Threads share it until it is nearly as old; not one that was `woken`, which may
        have been by a later write. Raises SourceError."""
        with self.use() as connection:
            if woken or time.monotonic() - self._snapshot_at > 0.9 * interval:
                with source_errors("looking whether anything was written"):
                    began = time.monotonic()
                    ((self._snapshot,),) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()
                    self._snapshot_at = began
            return self._snapshot

    def close(self) -> None:
        """Close the connection once no thread uses it any more."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
