"""What every service of one session of the pump shares: settings, the database, storage, tasks, and the inbox."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from mirror_pump.config import Settings
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.events import Event
from mirror_pump.pipeline.flow.steps import Observer
from mirror_pump.source.connect import PgConnection, connect


@dataclass(frozen=True)
class SessionContext:
    """Made once for each session, and handed to each of its threads. The settings are complete: they name a database
    and a slot."""

    settings: Settings
    storage: StorageOptions
    runner: TaskRunner
    """Runs tasks, in Spark as a rule."""
    observer: Observer
    inbox: SimpleQueue[Event]
    """Where threads put what they have for the session's loop."""

    @property
    def dsn(self) -> str:
        """Of the source database."""
        return self.settings.require_dsn()

    @property
    def slot(self) -> str:
        """The replication slot's name."""
        return self.settings.slot

    def connect(self) -> PgConnection:
        """A new connection in autocommit mode, which the caller closes. Raises SourceError."""
        return connect(self.dsn, autocommit=True)
