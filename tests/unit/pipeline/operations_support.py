"""A catalog that only records its statements, and tables and registrations for it: no server, no lake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.row_delta import SegmentFiles
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.model import (
    Column,
    Lsn,
    SequenceNumber,
    TableMode,
    TableState,
    Tier,
    TierKind,
)
from mirror_pump.pipeline.operations.operation import Cursor, SegmentChange
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.table_changes import TableChange
from sql import queries
from tests.support.table_values import live_table

_GROUPS = ("publish", "change", "fold", "publication")
_NAMES = {statement: name for group in _GROUPS for name, statement in queries(group).items()}

TIER = Tier("id", TierKind.BIGINT, cut=100, lag=0)

TABLE = live_table(
    (Column(1, "id", 20, -1, "bigint", ColumnType(Kind.LONG), 1, not_null=True),),
    number=16384,
    name="orders",
    start_lsn=Lsn(50),
    generation=3,
    location="file:///lake/public/orders",
)

LIVE = Registration(
    state=TableState.LIVE,
    start_lsn=TABLE.start_lsn,
    generation=TABLE.generation,
    namespace="public",
    lake_table="orders",
    metadata_location="file:///lake/public/orders/metadata/v1.json",
    staged=False,
    lake_table_missing=False,
    pinned=frozenset(),
    pin_in_hand=False,
    rewrite_since=None,
    swept_before=None,
    read_at=datetime(2026, 1, 1, tzinfo=UTC),
    policy=None,
    data_sequence_number=SequenceNumber(1),
    snapshot_id=7,
    rows_dropped=False,
    tier=None,
    initial_fields=frozenset(),
    mode=TableMode.MIRRORED,
    pointer=None,
    head=None,
    moments=frozenset(),
)
COPYING = replace(LIVE, state=TableState.COPYING)
FILLING = replace(LIVE, state=TableState.FILLING, staged=True)
WITH_RETENTION = replace(LIVE, tier=TIER)
"""With heap retention; rows below 100 are in the lake only."""


class RecordingCursor:
    """Records the statements that it gets, by their names in sql/queries/. Every UPDATE finds its row."""

    def __init__(self, answer: tuple[Any, ...] | None = None) -> None:
        self.executed: list[tuple[str, Mapping[str, Any]]] = []
        self.rowcount = 1
        self._answer = answer

    def execute(self, statement: str, parameters: Any = None) -> RecordingCursor:
        self.executed.append((_NAMES.get(statement, statement), parameters or {}))
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._answer

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.executed]

    @property
    def as_cursor(self) -> Cursor:
        return cast("Cursor", self)


def written_file(name: str, content: FileContent = FileContent.DATA) -> WrittenFile:
    """A file that does not exist."""
    return WrittenFile(
        content=content,
        path=f"file:///lake/{name}",
        record_count=1,
        size_bytes=10,
        column_sizes={},
        value_counts={},
        null_counts={},
        lower_bounds={},
        upper_bounds={},
    )


def segment(name: str) -> SegmentChange:
    return SegmentChange(SegmentFiles((written_file(name),), ()))


def change(*, again: bool = False, fills: bool = False) -> TableChange:
    table = replace(TABLE, start_lsn=Lsn(90)) if again else TABLE
    return TableChange(table, TABLE.start_lsn, 0, "it was altered", fills=fills)
