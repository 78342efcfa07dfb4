"""Partition bounds as Postgres stores them (pg_class.relpartbound), and their values."""

from __future__ import annotations

import datetime
import struct
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.contents.partition_bounds import PartitionBounds, bounds_of
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.model import Column
from tests.support.pgoutput import mirrored

_LEAF = 77


def _const(type_oid: int, datum: bytes | None) -> str:
    # As outDatum() prints it: bytes with their sign.
    value = (
        "<>"
        if datum is None
        else f"{len(datum)} [ {' '.join(str(struct.unpack('b', bytes([byte]))[0]) for byte in datum)} ]"
    )
    return (
        f"{{CONST :consttype {type_oid} :consttypmod -1 :constcollid 0 :constlen 4 :constbyval true"
        f" :constisnull {'true' if datum is None else 'false'} :location -1 :constvalue {value}}}"
    )


def _range(lower: str, upper: str) -> str:
    def datum(text: str) -> str:
        kind, value = {"min": ("-1", "<>"), "max": ("1", "<>")}.get(text, ("0", text))
        return f"{{PARTITIONRANGEDATUM :kind {kind} :value {value} :location -1}}"

    return (
        "{PARTITIONBOUNDSPEC :strategy r :is_default false :modulus 0 :remainder 0 :listdatums <>"
        f" :lowerdatums ({datum(lower)}) :upperdatums ({datum(upper)}) :location -1}}"
    )


def _list(*values: str) -> str:
    return (
        "{PARTITIONBOUNDSPEC :strategy l :is_default false :modulus 0 :remainder 0"
        f" :listdatums ({' '.join(values)}) :lowerdatums <> :upperdatums <> :location -1}}"
    )


def _bounds(text: str, type_oid: int, kind: Kind, key: Any = (1,)) -> PartitionBounds | None:
    column = Column(1, "k", type_oid, -1, "", ColumnType(kind), 5, not_null=True)
    table = replace(mirrored(1), columns=(column,), key=("k",))
    return bounds_of(
        table, {"partition_key": list(key) if key else None, "leaves": [{"id": _LEAF, "bound": text}]}, _LEAF
    )


@pytest.mark.parametrize(
    ("type_oid", "kind", "value", "wanted"),
    [
        (21, Kind.INT, -7, -7),
        (23, Kind.INT, -(2**29), -(2**29)),
        (20, Kind.LONG, 2**40, 2**40),
        (1082, Kind.DATE, -1, 10_956),
        (1184, Kind.TIMESTAMPTZ, 1, 946_684_800_000_001),
        (1114, Kind.TIMESTAMP, -1, 946_684_799_999_999),
    ],
)
def test_constants_of_each_type(type_oid: int, kind: Kind, value: int, wanted: int) -> None:
    constant = _const(type_oid, struct.pack("<q", value))
    assert _bounds(_range("min", constant), type_oid, kind) == PartitionBounds(5, None, wanted)
    assert _bounds(_range(constant, "max"), type_oid, kind) == PartitionBounds(5, wanted, None)
    assert _bounds(_list(constant, constant), type_oid, kind) == PartitionBounds(5, values=(wanted, wanted))


def test_what_is_not_known_exactly_has_no_bounds() -> None:
    seven = _const(23, struct.pack("<q", 7))
    text = _const(25, struct.pack("<I", 5 << 2) + b"x")
    assert _bounds(_list(text), 25, Kind.STRING) == PartitionBounds(5, values=("x",))
    refused = [
        _bounds(_range(text, "max"), 25, Kind.STRING),  # by a collation
        _bounds(_list(seven, _const(23, None)), 23, Kind.INT),  # NULL
        _bounds(_range(seven, "max"), 20, Kind.LONG),  # another type's constant
        _bounds(_range(seven, "max"), 23, Kind.STRING),  # mirrored as text
        _bounds(_range(_const(1082, struct.pack("<q", 2**31 - 1)), "max"), 1082, Kind.DATE),  # infinity
        _bounds(_range(seven, "max"), 23, Kind.INT, key=(1, 2)),
        _bounds(_range(seven, "max"), 23, Kind.INT, key=None),
        _bounds(_list(seven).replace(":is_default false", ":is_default true"), 23, Kind.INT),
        _bounds("", 23, Kind.INT),
    ]
    assert refused == [None] * len(refused)


def test_values_within_the_bounds() -> None:
    numbers = pa.array([None, -3, -2, 3, 4], pa.int32())
    assert PartitionBounds(5, -2, 4).holds(numbers).tolist() == [False, False, True, True, False]
    assert PartitionBounds(5, None, None).holds(numbers).tolist() == [False, True, True, True, True]
    assert PartitionBounds(5, values=(4, -3)).holds(numbers).tolist() == [False, True, False, False, True]
    assert PartitionBounds(5, values=("x",)).holds(pa.array(["x", None, "y"])).tolist() == [True, False, False]
    days = pa.array([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)])
    assert PartitionBounds(5, 0, 2).holds(days).tolist() == [True, False]
    moments = pa.array([-1, 0], pa.timestamp("us", tz="UTC"))
    assert PartitionBounds(5, None, 0).holds(moments).tolist() == [True, False]


@pytest.mark.parametrize(("least", "most", "wanted"), [(-9, -3, False), (-9, -2, True), (3, 9, True), (4, 9, False)])
def test_files_that_may_have_such_rows(least: int, most: int, wanted: bool) -> None:
    bounds = {5: struct.pack("<i", least)}, {5: struct.pack("<i", most)}
    file = LiveFile(FileContent.DATA, "f", 1, "PARQUET", 1, 1, (), *bounds)
    assert PartitionBounds(5, -2, 4).may_concern(file, ColumnType(Kind.INT)) is wanted
    assert PartitionBounds(5, values=(-2, 3)).may_concern(file, ColumnType(Kind.INT)) is wanted
    assert PartitionBounds(5, -2, 4).may_concern(replace(file, lower_bounds={}), ColumnType(Kind.INT))


def test_json_leads_back() -> None:
    for bounds in (PartitionBounds(5, -2, None), PartitionBounds(5, values=(1, 2)), PartitionBounds(5, values=("x",))):
        assert PartitionBounds.from_json(bounds.to_json()) == bounds
