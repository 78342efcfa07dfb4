"""What a publish is asked to do: values that the loop puts together and `Publisher` makes true."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.pipeline.operations.combinations import SchemaOperation, TableOperation, arranged
from mirror_pump.pipeline.operations.operation import Operation
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange

_OperationType = TypeVar("_OperationType", bound=Operation)


@dataclass(frozen=True)
class TableDelta:
    """What one publish does to one table. Without operations it only lets the table go live, if it is due.

    ValueError for operations that may not come together (mirror_pump.pipeline.operations.combinations).
    """

    table: MirroredTable
    """As it is with this publish: after a schema change, what the change makes of it."""
    operations: tuple[TableOperation, ...] = ()
    """In the order in which they are staged, whatever order they are given in."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", arranged(self.operations))

    def get(self, kind: type[_OperationType]) -> _OperationType | None:
        """The operation of this kind, of which there is one at most."""
        return next((operation for operation in self.operations if isinstance(operation, kind)), None)

    def adding(self, operation: TableOperation) -> TableDelta:
        """With one more operation."""
        return replace(self, operations=(*self.operations, operation))

    def without(self, kind: type[Operation]) -> TableDelta:
        """Without operations of this kind."""
        kept = tuple(operation for operation in self.operations if not isinstance(operation, kind))
        return replace(self, operations=kept)

    @property
    def change(self) -> TableChange | None:
        """The change of the table itself."""
        return next((known.change for known in self.operations if isinstance(known, SchemaOperation)), None)


@dataclass(frozen=True)
class PublishRequest:
    """One publish: all tables of a batch, and whatever copies have finished meanwhile."""

    frontier: Lsn | None = None
    """The new frontier; None leaves it where it is."""
    commit_time_us: int = 0
    """Commit time of the last transaction at or below `frontier`, microseconds since the Unix epoch; 0 if unknown."""
    deltas: tuple[TableDelta, ...] = ()
    failures: tuple[Failure, ...] = ()
    written_since: float = field(default_factory=time.time)
    """No file of the deltas is older, seconds since the Unix epoch: a sweep may have taken one that is."""
