"""Scans by each comparison with awkward values of each type, at top level and in a struct, and a look at each row."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions as pyiceberg_expressions
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.literals import BooleanLiteral
from pyiceberg.schema import Schema
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
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.predicates import bound_predicate
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.tables.table.table import Table
from tests.support.local_files import path_of
from tests.support.random_lake import matches
from tests.support.s3_server import s3_server

e: Any = pyiceberg_expressions
STORAGE = StorageOptions(fsync=False)
_TENTH = struct.unpack("<f", struct.pack("<f", 0.1))[0]
_LEAST_FLOAT = 2.0**-149
_DAY = 86_400_000_000
_BC = -1_000_000
"""Days from 1970: a date in the year -768."""

_VALUES: Sequence[tuple[PrimitiveType, Sequence[Any]]] = (
    (IntegerType(), (-(2**31), -1, 0, 1, 2**31 - 1)),
    (LongType(), (-(2**63), -1, 0, 2**53 + 1, 2**63 - 1)),
    (FloatType(), (math.nan, -math.inf, -0.0, 0.0, _LEAST_FLOAT, _TENTH, 3.4028234663852886e38, math.inf)),
    (DoubleType(), (math.nan, -math.inf, -0.0, 0.0, 5e-324, 0.1, 1.7976931348623157e308, math.inf)),
    (DecimalType(9, 2), tuple(map(Decimal, ("-9999999.99", "-0.01", "0.00", "1.50", "9999999.99")))),
    (DecimalType(38, 10), tuple(map(Decimal, ("-1.0000000001", "0E-10", f"{'9' * 28}.{'9' * 10}")))),
    (BooleanType(), (False, True)),
    (DateType(), (_BC, -719_163, -719_162, -1, 0, 2_932_896, 2_932_897)),
    (TimeType(), (0, 1, _DAY - 1)),
    (TimestampType(), (_BC * _DAY - 1, -1, 0, 1, 2_932_897 * _DAY, 2**62)),
    (TimestamptzType(), (_BC * _DAY - 1, -1, 0, 1, 2_932_897 * _DAY, 2**62)),
    (
        StringType(),
        (
            *("", "\0", "a" * 16, "a" * 17, "é" * 17, "\ud7ff" * 17, "\U0010ffff" * 17),
            "a" * 15 + "\U0010ffff" * 2,
        ),
    ),
    (BinaryType(), (b"", b"\0", b"a", b"\x80", b"\xff" * 16, b"\xff" * 17, b"a" * 16 + b"\xff")),
    (FixedType(4), (b"\0\0\0\0", b"abcd", b"\x80\0\0\0", b"\xff\xff\xff\xff")),
)
_ORDERED = (e.LessThan, e.LessThanOrEqual, e.GreaterThan, e.GreaterThanOrEqual)


@pytest.mark.parametrize(("kind", "pool"), _VALUES, ids=[str(kind) for kind, _ in _VALUES])
def test_a_scan_by_a_comparison_has_the_rows_that_match(
    tmp_path: Path, kind: PrimitiveType, pool: Sequence[Any]
) -> None:
    table = Table.create(MemoryCatalog(tmp_path.as_uri(), STORAGE), "a.b", _schema(kind))
    values = [*pool, None]
    files: list[list[Any]] = [values, [None, pool[-1], pool[-1]], [None, None]]
    rows: list[dict[str, Any]] = []
    for number, held in enumerate(files):
        first = len(rows)
        rows += [
            {"id": first + place, "v": value, "o.v": None if place % 3 == 1 else value, "o": place % 3 != 1}
            for place, value in enumerate(held)
        ]
        path = path_of(table.location) / "data" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(_arrow(rows[first:], table.schema), path, row_group_size=2)
        table.commit_append([str(path)])
    # Struct fields are not pruned by row groups, so some of the comparisons suffice.
    for predicate in [*_comparisons(kind, pool, "v"), *islice(_comparisons(kind, pool, "o.v"), 0, None, 5)]:
        found = table.scan(predicate, ["id"]).to_arrow(1)["id"].to_pylist()
        assert sorted(found) == [row["id"] for row in rows if matches(predicate, row)], predicate
    assert table.scan(e.IsNull("o"), ["id"]).to_arrow(1).num_rows == sum(not row["o"] for row in rows)


def _schema(kind: PrimitiveType) -> Schema:
    inner = StructType(NestedField(4, "v", kind, required=False))
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "v", kind, required=False),
        NestedField(3, "o", inner, required=False),
    )


def _arrow(rows: Sequence[dict[str, Any]], schema: Schema) -> pa.Table:
    own = list(schema.as_arrow())
    kind = own[1].type
    structs = schema.as_arrow().field("o").type.field(0).with_type(kind)
    nested = pa.StructArray.from_arrays(
        [pa.array([row["o.v"] for row in rows], kind)],
        fields=[structs],
        mask=pa.array([not row["o"] for row in rows]),
    )
    columns = [pa.array([row["id"] for row in rows], pa.int64()), pa.array([row["v"] for row in rows], kind), nested]
    return pa.table(columns, pa.schema([own[0], own[1], own[2].with_type(nested.type)]))


def _comparisons(kind: PrimitiveType, pool: Sequence[Any], column: str) -> Iterator[BooleanExpression]:
    floats = isinstance(kind, FloatType | DoubleType)
    literals = [value for value in pool if value == value]  # No literal is NaN.
    yield from (unary(column) for unary in (e.IsNull, e.NotNull, *((e.IsNaN, e.NotNaN) if floats else ())))
    for value in literals:
        for comparison in (e.EqualTo, e.NotEqualTo, *_ORDERED):
            yield comparison(column, value)
        for choice in (e.In, e.NotIn):
            yield choice(column, [value, literals[0], literals[-1]])
        if isinstance(kind, StringType):
            for prefix in {value[:1], value[:16]}:
                yield e.StartsWith(column, prefix)
                yield e.NotStartsWith(column, prefix)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        # The 0.1 of a float column is not that of a double.
        (e.EqualTo("f", 0.1), {3}),
        (e.In("f", [0.1, 7.0]), {3}),
        (e.LessThanOrEqual("f", 0.1), {1, 2, 3}),
        # Beyond the range of a float, but for infinity.
        (e.LessThan("f", 1e39), {1, 2, 3}),
        (e.LessThanOrEqual("f", 1e39), {1, 2, 3}),
        (e.GreaterThan("f", 1e39), {4}),
        (e.GreaterThan("f", -1e39), {2, 3, 4}),
        (e.LessThanOrEqual("f", -1e39), {1}),
        (e.NotEqualTo("f", 1e39), {1, 2, 3, 4, 5}),
        (e.EqualTo("f", math.inf), {4}),
        (e.EqualTo("f", 1e39), set()),
        # Beyond the digits of a decimal.
        (e.LessThan("dec", 10**9), {1, 2}),
        (e.GreaterThan("dec", -(10**9)), {1, 2}),
        (e.GreaterThan("dec", 10**9), set()),
        (e.NotIn("dec", [10**9, 2 * 10**9]), {1, 2}),
        (e.In("dec", [10**9, Decimal("1.50")]), {1}),
        (e.LessThan("ts", 2**70), {1}),
        (e.EqualTo("dec", 1.5), {1}),
        # Of another scale than the column's.
        ("dec = 1.5", {1}),
        ("dec = 1.500", {1}),
        ("dec in (1.5, 3.000)", {1}),
        (e.EqualTo("dec", "1.5"), {1}),
        (e.EqualTo("dec", Decimal("15E-1")), {1}),
        (e.EqualTo("dec", Decimal("1E+2")), set()),
        # Between two values of the column.
        ("dec = 1.505", set()),
        ("dec != 1.505", {1, 2}),
        ("dec < 1.505", {1}),
        ("dec <= 1.505", {1}),
        ("dec < 1.495", set()),
        ("dec > 1.495", {1, 2}),
        ("dec >= 1.505", {2}),
        ("dec > 9999999.985", {2}),
        ("dec > 9999999.995", set()),
        ("dec > -9999999.995", {1, 2}),
        ("dec < -9999999.995", set()),
        ("not dec in (1.505, 1.5)", {2}),
        (e.GreaterThan("dec", Decimal("-1E-999999")), {1, 2}),
        (e.LessThan("dec", Decimal("1E+999999")), {1, 2}),
        (e.LessThan("dec", math.inf), {1, 2}),
        # Beyond the range of a double.
        (e.EqualTo("d", Decimal("1E+400")), set()),
        (e.LessThanOrEqual("d", Decimal("1E+400")), {1, 2, 3}),
        (e.GreaterThan("d", "1e400"), {4}),
        (e.LessThan("d", -(10**400)), {1}),
        (e.EqualTo("d", "inf"), {4}),
        (e.EqualTo("f", "inf"), {4}),
    ],
    ids=str,
)
def test_literals_that_a_column_cannot_hold(
    tmp_path: Path, predicate: BooleanExpression | str, expected: set[int]
) -> None:
    names, kinds = ["id", "f", "d", "dec", "ts"], [pa.int64(), pa.float32(), pa.float64()]
    kinds += [pa.decimal128(9, 2), pa.timestamp("us")]
    catalog = MemoryCatalog(tmp_path.as_uri(), STORAGE)
    table = Table.create(catalog, "a.b", pa.schema(list(zip(names, kinds, strict=True))))
    for number, value in enumerate([-math.inf, 0.0, 0.1, math.inf, math.nan, None], 1):
        decimal = {1: Decimal("1.50"), 2: Decimal("9999999.99")}.get(number)
        columns = [[number], [value], [value], [decimal], [0 if number == 1 else None]]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        table.append(pa.table(arrays, names=names))
    assert set(table.scan(predicate).to_arrow()["id"].to_pylist()) == expected


@pytest.mark.parametrize(
    "predicate",
    [
        e.LessThan("n", Decimal("2.5")),
        e.EqualTo("n", "2.5"),
        e.In("n", [Decimal("2.5"), Decimal(3)]),
        e.EqualTo("dec", "1,5"),
        e.EqualTo("dec", "NaN"),
        e.EqualTo("dec", BooleanLiteral(True)),  # noqa: FBT003 - a value
        e.LessThan("day", datetime(1970, 1, 1, 12)),  # noqa: DTZ001 - of no zone
    ],
    ids=str,
)
def test_a_literal_that_would_be_rounded_is_refused(predicate: BooleanExpression) -> None:
    """`n < 2.5` is not `n < 2`, which it would be for pyiceberg."""
    schema = Schema(
        NestedField(1, "n", LongType(), required=False),
        NestedField(2, "dec", DecimalType(9, 2), required=False),
        NestedField(3, "day", DateType(), required=False),
    )
    with pytest.raises(UsageError):
        bound_predicate(predicate, schema)


def test_columns_that_no_file_has(tmp_path: Path) -> None:
    """Only they are asked for, so nothing is read of the files but the number of their rows, some of them deleted."""
    table = Table.create(MemoryCatalog(tmp_path.as_uri(), STORAGE), "a.b", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    document = dict(table.metadata.document)
    later = [
        {"id": 8, "name": "later", "required": False, "type": "string"},
        {"id": 9, "name": "begun", "required": False, "type": "int", "initial-default": 7},
    ]
    schema = document["schemas"][0]
    document["schemas"] = [{**schema, "fields": [*schema["fields"], *later]}]
    metadata = TableMetadata(document)
    for predicate, count in (
        (AlwaysTrue(), 3),
        (e.IsNull("later"), 3),
        (e.NotNull("later"), 0),
        # Nothing of the default is in the metrics: a file without the column may match.
        (e.EqualTo("begun", 7), 3),
        (e.LessThan("begun", 7), 0),
        (e.In("begun", [7, 8]), 3),
    ):
        plan = read_plan(metadata, STORAGE, predicate, columns=["later", "begun"])
        assert Scan(plan).to_arrow().to_pylist() == [{"later": None, "begun": 7}] * count, predicate


def test_a_scan_in_an_object_store(tmp_path: Path) -> None:
    with s3_server() as store:
        properties = {"s3.endpoint": store.endpoint, "s3.access-key-id": "k", "s3.secret-access-key": "s"}
        storage = StorageOptions({**properties, "s3.region": "us-east-1"})
        catalog = SqliteCatalog(tmp_path / "catalog.db", "s3://lake/warehouse", storage)
        table = Table.create(catalog, "a.b", pa.schema([("id", pa.int64()), ("name", pa.string())]))
        for number in range(12):
            table.append(pa.table({"id": [number, number + 100], "name": [f"n{number}", None]}))
        opened = Table.open(catalog, "a.b")
        read = opened.scan("id >= 108 or name = 'n3'").to_arrow()
        assert sorted(read["id"].to_pylist()) == [3, 108, 109, 110, 111]
        assert opened.scan(columns=["id"]).to_arrow().num_rows == 24
        # Nothing is read of the files that cannot match: they may be gone.
        kept = {path.removeprefix("s3://") for path in opened.read_plan("name = 'n7'").paths}
        for key in [key for key in store.objects if key.endswith(".parquet") and key not in kept]:
            del store.objects[key]
        assert opened.scan("name = 'n7'").to_arrow().to_pylist() == [{"id": 7, "name": "n7"}]
