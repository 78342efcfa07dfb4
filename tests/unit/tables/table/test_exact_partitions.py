"""Tables of every type and transform, with values at the ends of each type: scans have the rows that match, and each
file's partition is that of its rows, to the last digit and bit."""

from __future__ import annotations

import itertools
import math
import operator
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as pyiceberg_expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import FileRefused

e: Any = pyiceberg_expressions
STORAGE = StorageOptions(fsync=False)
_DAY = 86_400_000_000
_HOUR = 3_600_000_000


def _ends_of_decimals(precision: int, scale: int) -> tuple[Decimal, ...]:
    most = 10**precision - 1
    return tuple(Decimal(str(number)).scaleb(-scale, Context(prec=40)) for number in (-most, -1, 0, 1, most - 1, most))


def _single(value: float) -> float:
    found: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return found


_INTS = (-(2**31), -(2**31) + 1, -1, 0, 1, 9, 2**31 - 1)
_LONGS = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**53 + 1, 2**63 - 1)
_TIMES = (-(2**63), -_DAY - 1, -1, 0, _HOUR - 1, _HOUR, 365 * _DAY, 2**63 - 1)
POOLS: Mapping[PrimitiveType, Sequence[Any]] = {
    BooleanType(): (False, True),
    IntegerType(): _INTS,
    LongType(): _LONGS,
    FloatType(): (
        *(math.nan, math.inf, -math.inf, -0.0, 0.0, -1.5, 2.0**-149),
        *map(_single, (0.1, 16777217.0, 3.4028234663852886e38)),
    ),
    DoubleType(): (
        *(math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, _single(0.1), 1e300, 5e-324, 16777216.0, 16777217.0),
        *(1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308),
    ),
    **{
        DecimalType(precision, scale): _ends_of_decimals(precision, scale)
        for precision, scale in ((1, 0), (9, 2), (18, 18), (28, 0), (29, 1), (38, 0), (38, 10), (38, 38))
    },
    DateType(): (*_INTS, 365),
    TimeType(): (0, 1, _HOUR, _DAY - 1),
    TimestampType(): _TIMES,
    TimestamptzType(): _TIMES,
    StringType(): ("", "\0", "a", "a" * 17, "é" * 17, "\ud7ff" * 17, "\U0010ffff" * 17),
    BinaryType(): (b"", b"\0", b"a", b"\x80", b"\xff" * 17),
    FixedType(4): (b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff"),
    UUIDType(): tuple(uuid.UUID(int=number) for number in (0, 1, 2**127, 2**128 - 1)),
}
"""Values as Iceberg's transforms take them, with those at the ends of each type."""

_WIDTHS = ("truncate[1]", "truncate[5]", "truncate[10]", "truncate[1000]")
_BUCKETS = ("bucket[1]", "bucket[7]", "bucket[2147483647]")


def _transforms(kind: PrimitiveType) -> Sequence[str]:
    match kind:
        case BooleanType() | FloatType() | DoubleType():
            return ("identity",)
        case IntegerType() | LongType() | DecimalType() | StringType() | BinaryType():
            return ("identity", *_WIDTHS, *_BUCKETS, "void")
        case DateType():
            return ("identity", "day", "month", "year", *_BUCKETS)
        case TimestampType() | TimestamptzType():
            return ("identity", "hour", "day", "month", "year", *_BUCKETS)
        case UUIDType():
            return _BUCKETS
    return ("identity", *_BUCKETS)


_CASES = [(kind, transform) for kind in POOLS for transform in _transforms(kind)]


def _wrapped(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half


def _civil(days: int) -> date:
    """A date of the same month, in a year that Python has: 400 years are always 146,097 days."""
    return date(2000, 3, 1) + timedelta(days=(days - 11_017) % 146_097)


def _year(days: int) -> int:
    return _civil(days).year - 1970 + 400 * ((days - 11_017) // 146_097)


def _partition(kind: PrimitiveType, transform: str, value: Any) -> Any:
    """By plain arithmetic, with integers that wrap around as Java's do. Not of buckets."""
    if value is None or transform == "void":
        return None
    if transform.startswith("truncate"):
        width = int(transform[9:-1])
        if isinstance(kind, IntegerType | LongType):
            return _wrapped(value - value % width, 32 if isinstance(kind, IntegerType) else 64)
        if isinstance(kind, DecimalType):
            exact = Context(prec=60)
            unscaled = int(value.scaleb(kind.scale, exact))
            return Decimal(unscaled - unscaled % width).scaleb(-kind.scale, exact)
        return value[:width]
    days = value if isinstance(kind, DateType) else value // _DAY if isinstance(value, int) else 0
    calendar: dict[str, Callable[[], int]] = {
        "hour": lambda: value // _HOUR,
        "day": lambda: days,
        "month": lambda: _year(days) * 12 + _civil(days).month - 1,
        "year": lambda: _year(days),
    }
    return _wrapped(calendar[transform](), 32) if transform in calendar else value


def _bits(value: Any) -> Any:
    """Equal for values that are the same in each digit and bit."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value.as_tuple() if isinstance(value, Decimal) else value


def _arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.array([None if value is None else value.bytes for value in values], kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    return pa.array(values, kind)


def _fits(kind: PrimitiveType, transform: str, value: Any) -> bool:
    """Whether the partition is a value of the field's type. A decimal may be truncated to one of too many digits."""
    if not isinstance(kind, DecimalType) or not transform.startswith("truncate"):
        return True
    partition = _partition(kind, transform, value)
    return partition is None or len(partition.as_tuple().digits) <= kind.precision


_COMPARISONS: Mapping[Any, Callable[[Any, Any], bool]] = {
    e.EqualTo: operator.eq,
    e.NotEqualTo: operator.ne,
    e.LessThan: operator.lt,
    e.LessThanOrEqual: operator.le,
    e.GreaterThan: operator.gt,
    e.GreaterThanOrEqual: operator.ge,
}


def _expected(rows: Mapping[int, Any], comparison: Any, literal: Any) -> list[int]:
    test = _COMPARISONS[comparison]
    ordered = {number: value for number, value in rows.items() if value is not None}
    # NaN equals nothing, not even itself, and is neither less nor greater.
    return [number for number, value in ordered.items() if test(value, literal)]


def _table(directory: Path, kind: PrimitiveType, transforms: Sequence[str]) -> Table:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "v", kind, required=False))
    fields = [PartitionField(2, 1000 + n, parse_transform(name), f"p{n}") for n, name in enumerate(transforms)]
    return Table.create(MemoryCatalog(directory.as_uri(), STORAGE), "a.b", schema, PartitionSpec(*fields))


def _append(table: Table, rows: Mapping[int, Any]) -> None:
    kind = table.schema.as_arrow().field("v").type
    table.append(pa.table({"id": pa.array(list(rows), pa.int64()), "v": _arrow(list(rows.values()), kind)}))


def _ids(table: Table, predicate: BooleanExpression) -> list[int]:
    found: list[int] = table.scan(predicate, ["id"]).to_arrow(1)["id"].to_pylist()
    return sorted(found)


def _require_partitions(table: Table, kind: PrimitiveType, transforms: Sequence[str], rows: Mapping[int, Any]) -> None:
    """That each file's partition is that of its rows, and that no two files of a commit have the same."""
    for file in table.read_plan().files:
        ids = pa.parquet.read_table(file.path.removeprefix("file://"), columns=["id"])["id"].to_pylist()
        for place, transform in enumerate(transforms):
            if not transform.startswith("bucket"):
                of_rows = {_bits(_partition(kind, transform, rows[number])) for number in ids}
                assert of_rows == {_bits(file.partition[place])}, (transform, file.partition)


@st.composite
def _content(draw: Any) -> tuple[PrimitiveType, list[str], list[list[Any]], list[tuple[Any, Any]]]:
    kind, transform = draw(st.sampled_from(_CASES))
    transforms = [transform]
    if draw(st.booleans()):
        transforms += [name for name in [draw(st.sampled_from(_transforms(kind)))] if name != transform]
    values = st.one_of(st.none(), st.sampled_from(POOLS[kind]), st.sampled_from(POOLS[kind]))
    commits = draw(st.lists(st.lists(values, min_size=1, max_size=8), min_size=1, max_size=3))
    usual = [value for value in POOLS[kind] if value == value]
    comparisons = [e.EqualTo, e.NotEqualTo] if kind in (UUIDType(), BooleanType()) else list(_COMPARISONS)
    asked = draw(
        st.lists(st.tuples(st.sampled_from(comparisons), st.sampled_from(usual)), min_size=3, max_size=6, unique=True)
    )
    return kind, transforms, commits, asked


@settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(_content())
@example((LongType(), ["truncate[5]"], [[-(2**63), 0]], [(e.EqualTo, -(2**63)), (e.LessThan, 0)]))
@example((IntegerType(), ["truncate[10]"], [[-(2**31)]], [(e.LessThanOrEqual, -(2**31))]))
@example((DoubleType(), ["identity"], [[0.0, -0.0, 0.1, 1e300, 5e-324, 16777217.0]], [(e.EqualTo, 0.1)]))
@example((TimestampType(), ["year", "hour"], [list(_TIMES)], [(e.EqualTo, 2**63 - 1), (e.LessThan, 0)]))
@example((DateType(), ["month"], [list(_INTS)], [(e.EqualTo, 2**31 - 1)]))
def test_scans_have_the_rows_that_match(
    tmp_path_factory: pytest.TempPathFactory,
    content: tuple[PrimitiveType, list[str], list[list[Any]], list[tuple[Any, Any]]],
) -> None:
    kind, transforms, commits, asked = content
    directory = tmp_path_factory.mktemp("exact")
    table = _table(directory, kind, transforms)
    rows: dict[int, Any] = {}
    for values in commits:
        new = dict(enumerate(values, len(rows)))
        if all(_fits(kind, transform, value) for transform in transforms for value in values):
            _append(table, new)
            rows |= new
        else:
            before = list(directory.rglob("*"))
            with pytest.raises(FileRefused, match="too many digits"):
                _append(table, new)
            assert list(directory.rglob("*")) == before
    _require_partitions(table, kind, transforms, rows)
    for comparison, literal in asked:
        assert _ids(table, comparison("v", literal)) == _expected(rows, comparison, literal), (comparison, literal)
    assert _ids(table, e.IsNull("v")) == [number for number, value in rows.items() if value is None]
    if kind in (FloatType(), DoubleType()):
        assert _ids(table, e.IsNaN("v")) == [number for number, value in rows.items() if value != value]
    # Entries that are carried over to another manifest, by a process that did not write them.
    files = table.read_plan().files
    if len(files) > 1:
        gone = pa.parquet.read_table(files[0].path.removeprefix("file://"), columns=["id"])["id"].to_pylist()
        again = Table.open(table._catalog, "a.b")
        again.commit_overwrite([files[0].path], [])
        left = {number: value for number, value in rows.items() if number not in gone}
        _require_partitions(again, kind, transforms, rows)
        for comparison, literal in asked:
            assert _ids(again, comparison("v", literal)) == _expected(left, comparison, literal)


@pytest.mark.parametrize(("precision", "scale"), [(29, 0), (38, 10), (38, 38)])
def test_decimals_of_more_than_28_digits(tmp_path: Path, precision: int, scale: int) -> None:
    kind = DecimalType(precision, scale)
    table = _table(tmp_path, kind, ["identity"])
    rows = dict(enumerate(_ends_of_decimals(precision, scale)))
    _append(table, rows)
    for number, value in rows.items():
        assert _ids(table, e.EqualTo("v", value)) == [number]
    _require_partitions(table, kind, ["identity"], rows)


def test_doubles_that_have_no_32_bits(tmp_path: Path) -> None:
    table = _table(tmp_path, DoubleType(), ["identity"])
    rows = dict(enumerate((0.1, 1e300, 5e-324, 16777217.0)))
    _append(table, rows)
    for number, value in rows.items():
        assert _ids(table, e.EqualTo("v", value)) == [number]


def test_manifests_that_are_merged_keep_each_digit_and_bit(tmp_path: Path) -> None:
    for number, (kind, transform) in enumerate(itertools.product((DoubleType(), DecimalType(38, 10)), ("identity",))):
        table = _table(tmp_path / str(number), kind, [transform])
        rows: dict[int, Any] = {}
        for value in itertools.islice(itertools.cycle(POOLS[kind]), 12):
            rows[len(rows)] = value
            # Opened anew, it knows no entry that it wrote itself.
            table = Table.open(table._catalog, "a.b")
            _append(table, {len(rows) - 1: value})
        assert len(table.manifests) < 12
        _require_partitions(table, kind, [transform], rows)
        for value in (value for value in POOLS[kind] if value == value):
            assert _ids(table, e.EqualTo("v", value)) == _expected(rows, e.EqualTo, value)
