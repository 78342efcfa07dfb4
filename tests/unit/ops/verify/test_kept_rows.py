"""What a comparison says of rows that the lake alone has, in ranges where it keeps rows of partitions that went."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.contents.kept_ranges import KeptRanges
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import TierKind
from mirror_pump.ops.verify.compare_duckdb import compare_rows
from mirror_pump.ops.verify.comparison import ALL_ROWS, ComparedRows
from mirror_pump.testing.lake import duckdb_connection

_KINDS: dict[TierKind, tuple[Kind, Callable[[int], Any]]] = {
    TierKind.BIGINT: (Kind.LONG, lambda number: number),
    TierKind.DATE: (Kind.DATE, lambda number: date(1970, 1, 1) + timedelta(number)),
    TierKind.TIMESTAMPTZ: (Kind.TIMESTAMPTZ, lambda number: datetime.fromtimestamp(0, UTC) + timedelta(0, 0, number)),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_that_the_lake_keeps_are_no_differences(kind: TierKind) -> None:
    """A key that it has twice is one, and so are other values of a key that the heap has too."""
    column, value = _KINDS[kind]
    schema = LakeSchema(
        0,
        (
            LakeField(1, "at", ColumnType(column), required=True),
            LakeField(2, "v", ColumnType(Kind.LONG), required=False),
        ),
        (1,),
    )

    def rows(*numbers: tuple[int, int]) -> pa.Table:
        return pa.table([[value(at) for at, _ in numbers], [v for _, v in numbers]], schema=schema.arrow)

    def different(heap: pa.Table, lake: pa.Table, chosen: ComparedRows) -> tuple[Any, ...]:
        with duckdb_connection() as duckdb:
            duckdb.register("in_heap", heap)
            duckdb.register("in_lake", lake)
            found = compare_rows(duckdb, {"heap": "in_heap", "lake": "in_lake"}, schema, chosen, 10)
        assert len(found.differences) == found.different_rows
        return found.lake_rows, sorted(difference["kind"] for difference in found.differences)

    kept = ComparedRows(kept_ranges=KeptRanges("at", kind, (PartitionBounds(1, 10, 20), PartitionBounds(1, 30, 40))))
    heap = rows((5, 0), (15, 0))
    assert different(heap, rows((5, 0), (15, 0), (10, 0), (19, 0), (30, 0)), kept) == (2, [])
    assert different(heap, rows((5, 0), (15, 0), (10, 0)), ALL_ROWS) == (3, ["extra"])
    assert different(heap, rows((5, 0), (15, 0), (20, 0), (40, 0)), kept) == (4, ["extra", "extra"])
    assert different(heap, rows((5, 0), (15, 1), (15, 0), (12, 0), (12, 0)), kept)[1] in (
        ["different", "extra", "extra"],
        ["extra", "extra"],
    )
    assert different(heap, rows((5, 0), (12, 0)), kept) == (1, ["missing"])
