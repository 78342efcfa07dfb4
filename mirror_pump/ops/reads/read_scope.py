"""What the reads of one statement, or of one DataFrame, have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.reads.table_reads import HeapConditions, Warn, every_row
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot


@dataclass(frozen=True)
class ReadScope:
    """Where to read, how long, and whom to tell. The reads are valid until `stack` is closed."""

    settings: Settings
    storage: StorageOptions
    stack: ExitStack = field(repr=False)
    """Releases the database snapshots and pins that the reads depend on."""
    warn: Warn
    """Tells the reader what the reads do not show."""
    stopped: Callable[[], bool] = lambda: False
    """Whether the reader is gone, so that no pin needs to be kept."""
    conditions: HeapConditions = every_row
    moments: list[ConsistentSnapshot] = field(default_factory=list)
    """The database snapshots that were entered."""

    @property
    def dsn(self) -> str:
        return self.settings.require_dsn()

    def enter(self, moment: ConsistentSnapshot) -> ConsistentSnapshot:
        """Takes over a database snapshot, for as long as the reads last."""
        self.moments.append(self.stack.enter_context(moment))
        return moment
