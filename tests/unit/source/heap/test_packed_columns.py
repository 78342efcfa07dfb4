"""What PostgreSQL returns of packed columns is checked: ranges of blocks, numbers of values, numbers of bytes."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import SourceError
from mirror_pump.model import Column, TableName
from mirror_pump.source.heap.packed_columns import PackedColumns, packable
from mirror_pump.source.heap.packed_read import PackedRead

ID = Column(1, "id", 20, -1, "bigint", ColumnType(Kind.LONG), 1, not_null=True)
NOTE = Column(2, "note", 25, -1, "text", ColumnType(Kind.STRING), 2, not_null=False)
PRICE = Column(3, "price", 1700, -1, "numeric(9,2)", ColumnType(Kind.DECIMAL, 9, 2), 3, not_null=False)
FLAG = Column(4, "flag", 16, -1, "boolean", ColumnType(Kind.BOOLEAN), 4, not_null=False)
COLUMNS = (ID, NOTE, PRICE, FLAG)


def whole(numbers: list[int], width: str = "q") -> bytes:
    return struct.pack(f">{len(numbers)}{width}", *numbers)


THREE = {
    "lo": 0,
    "hi": 8,
    "rows": 3,
    "with_nulls": 1,
    "id": whole([7, -8, 9]),
    "lengths": whole([2, -1, 0], "i"),
    "note": b"\xc3\xa9",
    "price": b"1.50\n\n-2.00",
    "flag": b"\x01\x00\x00",
    "mask": whole([0, 0, 2], "i"),
}
NOTHING = dict.fromkeys(THREE) | {"lo": 8, "hi": 12, "rows": 0}


SCHEMA = pa.schema([(name, pa.int64() if isinstance(value, int) else pa.binary()) for name, value in THREE.items()])


def result(*ranges: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(ranges), SCHEMA)


class PreparedCursor:
    """Answers with a result that was prepared, as ADBC's cursor does."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def execute(self, statement: str) -> None:
        pass

    def fetchone(self) -> None:
        pass

    def fetch_record_batch(self) -> list[pa.RecordBatch]:
        return [self._batch]


def read(batch: pa.RecordBatch, lo: int, hi: int) -> list[list[pa.Array]]:
    packed = PackedRead(TableName("public", "t"), lo, hi, 8192, PackedColumns(COLUMNS))
    return list(packed.arrays(PreparedCursor(batch), packed.statement(1 << 20)))


def test_rows_are_made_of_columns() -> None:
    ((ids, notes, prices, flags),) = read(result(THREE, NOTHING), 0, 12)
    assert ids.to_pylist() == [7, -8, 9]
    assert notes.to_pylist() == ["é", None, ""]
    assert prices.to_pylist() == ["1.50", None, "-2.00"]
    assert flags.to_pylist() == [True, False, None]


def test_ranges_without_nulls_need_no_mask() -> None:
    ((ids, _, _, flags),) = read(result(THREE | {"with_nulls": 0, "mask": None}, NOTHING), 0, 12)
    assert ids.to_pylist() == [7, -8, 9]
    assert flags.to_pylist() == [True, False, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 2},
        {"rows": 4},
        {"id": whole([7, -8])},
        {"note": b"\xc3\xa9!"},
        {"lengths": whole([2, -1], "i")},
        {"price": b"1.50\n-2.00"},
        {"flag": b"\x01\x00"},
        {"flag": b"\x01\x00\x01"},
        {"mask": whole([0, 0], "i")},
        {"mask": None},
        {"mask": whole([0, 0, 0], "i")},
        {"with_nulls": 0},
        {"with_nulls": 2},
    ],
)
def test_columns_of_different_lengths_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="another number of values"):
        read(result(THREE | wrong, NOTHING), 0, 12)


@pytest.mark.parametrize(
    "ranges", [(THREE,), (NOTHING,), (THREE, THREE), (NOTHING, THREE), (THREE, NOTHING | {"lo": 9}), ()]
)
def test_a_missing_or_repeated_range_is_refused(ranges: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(SourceError, match=r"PostgreSQL returned (block|nothing)"):
        read(result(*ranges), 0, 12)


def test_types_that_print_in_other_ways_are_not_packed() -> None:
    def column(oid: int, kind: Kind) -> Column:
        return Column(1, "c", oid, -1, "?", ColumnType(kind), 1, not_null=False)

    assert packable(COLUMNS)
    # char(n) would lose blanks; the other two are a domain, and a number that is mirrored as a text.
    for other in (column(1042, Kind.STRING), column(16384, Kind.LONG), column(1700, Kind.STRING)):
        assert not packable([*COLUMNS, other])


def test_so_many_columns_that_no_query_could_have_their_aggregates_are_not_packed() -> None:
    """Texts take the most: PostgreSQL refuses target lists of more than 1,664 entries."""
    assert packable([NOTE] * 500)
    assert PackedColumns([NOTE] * 500).select("t", 0, 1, 1).count(" AS a") < 1664
    assert not packable([NOTE] * 501)
