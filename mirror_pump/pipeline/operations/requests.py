"""What a publish should do: the requests that the loop sends to `Publisher`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.operations.combinations import SchemaOperation, TableOperation, arranged
from mirror_pump.pipeline.operations.operation import Operation
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange

_OperationType = TypeVar("_OperationType", bound=Operation)


@dataclass(frozen=True)
class TableRequest:
    """What one publish does to one table. Without operations, it only lets the table go live if that is due.

    Raises ValueError for operations that may not be combined (mirror_pump.pipeline.operations.combinations).
    """

    table: MirroredTable
    """The table after the publish's schema change, if there is one."""
    operations: tuple[TableOperation, ...] = ()
    """In the order in which they are staged, regardless of the order in which they are given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", arranged(self.operations))

    def get(self, kind: type[_OperationType]) -> _OperationType | None:
        """The operation of this type, or None. There is at most one."""
        return next((operation for operation in self.operations if isinstance(operation, kind)), None)

    def adding(self, operation: TableOperation) -> TableRequest:
        """A copy with one more operation."""
        return replace(self, operations=(*self.operations, operation))

    def without(self, kind: type[Operation]) -> TableRequest:
        """A copy without the operation of this type."""
        operations = tuple(operation for operation in self.operations if not isinstance(operation, kind))
        return replace(self, operations=operations)

    @property
    def change(self) -> TableChange | None:
        """The change of the table itself, if there is one."""
        return next((operation.change for operation in self.operations if isinstance(operation, SchemaOperation)), None)


@dataclass(frozen=True)
class FeedRequest:
    """What one publish does to the files of one change feed, beside what its table's changes bring. Another engine's
    commit to the feed is settled first."""

    feed_id: TableId
    location: str = ""
    """Root URI of its files. A feed that was made anew has another one."""
    rewrite: FeedRewrite | None = None
    """It is left out if it does not fit the feed any more. None: nothing is rewritten."""

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the files that a task wrote."""
        return () if self.rewrite is None else tuple(file.path for file in self.rewrite.written)


@dataclass(frozen=True)
class PublishRequest:
    """One publish: all tables of a batch, with the chunks that were copied in the meantime."""

    frontier: Lsn | None = None
    """The new frontier. None: it does not move."""
    commit_time_us: int = 0
    """Commit time of the last transaction at or below `frontier`, in microseconds since the Unix epoch. 0 if
    unknown."""
    tables: tuple[TableRequest, ...] = ()
    feeds: tuple[FeedRequest, ...] = ()
    failures: tuple[Failure, ...] = ()
    written_since: float = field(default_factory=time.time)
    """Time before the first file of the operations was written, in seconds since the Unix epoch. A sweep may have
    removed older files."""

    @classmethod
    def of(cls, table: MirroredTable, operation: TableOperation, written_since: float | None = None) -> Self:
        """One operation by itself. `written_since`: as the field, None if it has no files."""
        tables = (TableRequest(table, (operation,)),)
        return cls(tables=tables, written_since=time.time() if written_since is None else written_since)

    @property
    def files(self) -> list[str]:
        """URIs of the files that tasks wrote for it."""
        of_tables = (file for part in self.tables for operation in part.operations for file in operation.files)
        return [*of_tables, *(file for feed in self.feeds for file in feed.files)]

    def failing(self, failures: Iterable[Failure]) -> PublishRequest:
        """A copy that fails these tables too."""
        return replace(self, failures=(*self.failures, *failures))
