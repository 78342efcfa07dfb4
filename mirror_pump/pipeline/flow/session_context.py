"""What all services of one session share: settings, the database, storage, tasks, and the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from mirror_pump.config import Settings
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.events import Event
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.source.connect import PgConnection, connect

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

    @property
    def dsn(self) -> str:
        """Connection string of the source database."""
        return self.settings.require_dsn()

    @property
    def slot(self) -> str:
        """Name of the replication slot."""
        return self.settings.slot

    def connect(self) -> PgConnection:
        """Opens a connection in autocommit mode, which the caller closes. Raises SourceError."""
        return connect(self.dsn, autocommit=True)
