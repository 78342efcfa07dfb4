"""What PostgreSQL returns of packed columns is checked: ranges of blocks, numbers of values, numbers of bytes."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal
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
    "price": b"1.50\n\n-2.00\n",
    "flag": b"\x01\x00\x00",
    "mask": whole([0, 0, 2], "i"),
}
NOTHING = dict.fromkeys(THREE) | {"lo": 8, "hi": 12, "rows": 0, "with_nulls": 0}


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
    assert prices.to_pylist() == [Decimal("1.50"), None, Decimal("-2.00")]
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
        {"price": b"1.50\n-2.00\n"},
        {"price": b"1.50\n\n-2.00"},
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


TWO = {
    "lo": 12,
    "hi": 16,
    "rows": 2,
    "with_nulls": 2,
    "id": whole([0, 1]),
    "lengths": whole([1, 3], "i"),
    "note": b"abcd",
    "price": b"\n-0.05\n",
    "flag": b"\x00\x00",
    "mask": whole([1, 2], "i"),
}


def test_ranges_are_decoded_together() -> None:
    ((ids, notes, prices, flags),) = read(result(THREE, NOTHING, TWO), 0, 16)
    assert ids.to_pylist() == [7, -8, 9, None, 1]
    assert notes.to_pylist() == ["é", None, "", "a", "bcd"]
    assert prices.to_pylist() == [Decimal("1.50"), None, Decimal("-2.00"), None, Decimal("-0.05")]
    assert flags.to_pylist() == [True, False, None, False, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"id": whole([7, -8])}, {"id": whole([9, 0, 1])}),
        ({"note": b"\xc3\xa9a"}, {"note": b"bcd"}),
        ({"lengths": whole([2, -1], "i")}, {"lengths": whole([0, 1, 3], "i")}),
        ({"price": b"1.50\n\n-2.00\n\n"}, {"price": b"-0.05\n"}),
        ({"price": b"1.50\n\n-2.00"}, {"price": b"\n\n-0.05\n"}),
        ({"mask": whole([0, 0, 2, 1], "i")}, {"mask": whole([2], "i")}),
        ({"mask": None}, {}),
        ({"with_nulls": 2}, {"with_nulls": 1}),
        ({"rows": 2}, {"rows": 3}),
    ],
)
def test_what_one_range_lacks_and_the_next_has_is_refused(first: dict[str, Any], second: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="another number of values"):
        read(result(THREE | first, NOTHING, TWO | second), 0, 16)


@pytest.mark.parametrize(
    ("precision", "scale", "texts"),
    [
        (4, 2, ["NaN", "1.50", "-Infinity"]),
        (4, 2, ["123.45", "1.50"]),
        (4, 2, ["1.5", "1.50"]),
        (4, 2, ["1", "1.50"]),
        (4, 2, ["1.500", "1.50"]),
        (4, 0, ["12345"]),
        (4, 0, ["-10000"]),
        (4, 0, ["NaN"]),
        (4, 0, ["1.5"]),
        (18, 0, ["1" * 19]),
        (18, 0, ["1" * 30]),
        (38, 2, ["1.50"]),
    ],
)
def test_numbers_that_are_not_as_their_type_says_stay_texts(precision: int, scale: int, texts: list[str]) -> None:
    assert numbers(precision, scale, texts).to_pylist() == texts


@pytest.mark.parametrize(
    ("precision", "scale", "texts"),
    [
        (4, 2, ["0.00", "-0.05", "99.99", "-99.99", "0.10"]),
        (4, 0, ["0", "-7", "9999", "-9999"]),
        (2, 2, ["0.99", "-0.01"]),
        (18, 18, ["0.999999999999999999", "-0.999999999999999999", "0.000000000000000001"]),
        (18, 0, ["9" * 18, "-" + "9" * 18]),
    ],
)
def test_numbers_as_their_type_says_are_decimals(precision: int, scale: int, texts: list[str]) -> None:
    decimals = numbers(precision, scale, texts)
    assert decimals.type == pa.decimal128(precision, scale)
    assert decimals.to_pylist() == [Decimal(text) for text in texts]


def numbers(precision: int, scale: int, texts: list[str]) -> pa.Array:
    column = replace(PRICE, type=ColumnType(Kind.DECIMAL, precision, scale))
    lines = "".join(f"{text}\n" for text in texts).encode()
    batch = pa.RecordBatch.from_pylist([{"lo": 0, "hi": 8, "rows": len(texts), "with_nulls": 0, "price": lines}])
    arrays = PackedColumns([column]).arrays(batch)
    assert arrays is not None
    return arrays[0]


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


def test_a_range_has_at_most_512_kib() -> None:
    packed = PackedRead(TableName("public", "t"), 0, 1000, 8192, PackedColumns([NOTE]))
    for batch_bytes, blocks in ((16 << 20, 64), (8 * 8192, 8), (1, 1)):
        assert f"generate_series(0, 999, {blocks})" in packed.statement(batch_bytes)
