"""Random lake tables whose rows are known: what plans and scans of them are compared with.

Rows are in the form of Iceberg's single values: dates and times are integers. Metrics are those of real footers, taken
by pyiceberg; manifests and their lists are written by pyiceberg too, in format version 1 or 2. Data files have row
groups of few rows.
"""

from __future__ import annotations

import itertools
import math
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import expressions as pyiceberg_expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.bounds import lower_bound, upper_bound

expressions: Any = pyiceberg_expressions
Row = dict[str, Any]

SCHEMA = Schema(
    NestedField(1, "i", IntegerType(), required=False),
    NestedField(2, "l", LongType(), required=False),
    NestedField(3, "d", DoubleType(), required=False),
    NestedField(4, "s", StringType(), required=False),
    NestedField(5, "b", BinaryType(), required=False),
    NestedField(6, "dec", DecimalType(9, 2), required=False),
    NestedField(7, "dt", DateType(), required=False),
    NestedField(8, "ts", TimestampType(), required=False),
    NestedField(9, "tz", TimestamptzType(), required=False),
    NestedField(10, "u", UUIDType(), required=False),
    NestedField(11, "bo", BooleanType(), required=False),
    NestedField(12, "late", StringType(), required=False),
    NestedField(13, "f", FloatType(), required=False),
    NestedField(14, "exact", DoubleType(), required=False),
    NestedField(15, "digits", DecimalType(38, 10), required=False),
    schema_id=1,
)
OLD_SCHEMA = Schema(
    *(
        NestedField(
            field.field_id,
            # It was renamed since.
            "former" if field.name == "s" else field.name,
            {"l": IntegerType(), "d": FloatType()}.get(field.name, field.field_type),
            required=False,
        )
        for field in SCHEMA.fields
        if field.name != "late"
    ),
    schema_id=0,
)

_DAY = 86_400_000_000
_LONG_TEXT = "a" * 16
_TENTH: float = struct.unpack("<f", struct.pack("<f", 0.1))[0]
_BEYOND: Mapping[str, Sequence[Any]] = {"i": (2**40, -(2**40)), "f": (1e39, -1e39), "dec": (10**9, -(10**9))}
"""Literals that no value of the column equals, since its type cannot hold them."""
POOLS: Mapping[str, Sequence[Any]] = {
    "i": (-(2**31), -11, -10, -1, 0, 1, 5, 9, 10, 11, 2**31 - 1),
    "l": (-(2**31), -10, -1, 0, 1, 5, 10, 2**31 - 1),
    "d": (math.nan, math.inf, -math.inf, -0.0, 0.0, -1.5, 1.5, 100.0),
    "s": (
        "",
        "a",
        "ab",
        "b",
        _LONG_TEXT,
        _LONG_TEXT + "a",
        _LONG_TEXT + "b",
        "\ud7ff" * 17,
        "\U0010ffff" * 17,
        "é\uffff",
    ),
    "b": (b"", b"\0", b"a", b"a" * 17, b"\xff" * 16, b"\xff" * 17, b"\x80"),
    "dec": tuple(map(Decimal, ("-100.00", "-0.01", "0.00", "0.01", "1.50", "9999999.99"))),
    "dt": (-719162, -366, -1, 0, 1, 30, 31, 20000),
    "ts": (-_DAY - 1, -_DAY, -1, 0, 1, _DAY - 1, _DAY, 31 * _DAY),
    "tz": (-1, 0, 3_600_000_000 - 1, 3_600_000_000, 20000 * _DAY),
    "u": tuple(uuid.UUID(int=number).bytes for number in (0, 1, 2**127, 2**128 - 1)),
    "bo": (False, True),
    "late": ("", "x", "y"),
    "f": (math.nan, math.inf, -math.inf, -0.0, 0.0, _TENTH, -1.5, 2.0**-149),
    "exact": (math.nan, -math.inf, 0.1, _TENTH, 1e300, 5e-324, 16777216.0, 16777217.0),
    "digits": tuple(
        map(
            Decimal, (f"-{'9' * 28}.{'9' * 8}00", "-1E-10", "0E-10", f"{'9' * 28}.{'9' * 9}8", f"{'9' * 28}.{'9' * 10}")
        )
    ),
}
"""Values of the rows and of the predicates' literals, at and beside all kinds of ends."""

_TRANSFORMS: Mapping[str, Sequence[str]] = {
    "i": ("identity", "bucket[4]", "truncate[10]"),
    "l": ("identity", "bucket[3]", "truncate[4]"),
    "d": ("identity",),
    "f": ("identity",),
    "exact": ("identity",),
    "digits": ("identity", "bucket[4]", "truncate[50]"),
    "s": ("identity", "bucket[4]", "truncate[1]", "truncate[16]"),
    "b": ("identity", "bucket[2]", "truncate[2]"),
    "dec": ("identity", "bucket[4]", "truncate[50]"),
    "dt": ("identity", "day", "month", "year", "bucket[5]"),
    "ts": ("identity", "hour", "day", "month", "year"),
    "tz": ("hour", "day", "void"),
    "u": ("identity", "bucket[4]"),
    "bo": ("identity",),
}
_WRITTEN = {"u": pa.binary(16), "l": pa.int32(), "d": pa.float32()}


@dataclass(frozen=True)
class RandomLakeTable:
    """A table and the rows of each of its files, by URI."""

    metadata: TableMetadata
    rows: Mapping[str, Sequence[Row]]
    manifests: Sequence[str]


def random_table(random: Random, directory: Path) -> RandomLakeTable:
    """Writes one below the directory: several manifests of one or two specs and of two schemas."""
    version: Any = random.choice((1, 2))
    specs = [_spec(random, number) for number in range(random.choice((1, 2)))]
    files: dict[str, Sequence[Row]] = {}
    io = PyArrowFileIO()
    written = []
    for number in range(random.randint(1, 3)):
        schema = random.choice((SCHEMA, OLD_SCHEMA))
        spec = random.choice(specs)
        rounded_up = random.random() < 0.2
        location = f"file://{directory}/m{number}.avro"
        codec: Any = random.choice(("null", "deflate"))
        with write_manifest(version, spec, schema, io.new_output(location), 1, codec) as writer:
            for rows, partition in _files(random, spec, rounded_up=rounded_up):
                path = f"file://{directory}/f{len(files)}.parquet"
                files[path] = rows if schema is SCHEMA else [{**row, "late": None} for row in rows]
                writer.add_entry(_entry(random, path, rows, partition, schema, spec))
        written.append(writer.to_manifest_file())
    listed = f"file://{directory}/list.avro"
    snapshot: dict[str, Any] = {"snapshot-id": 1, "timestamp-ms": 0, "manifest-list": listed}
    if version == 1 and random.random() < 0.3:
        # As the first writers of this version had it.
        snapshot = {"snapshot-id": 1, "timestamp-ms": 0, "manifests": [each.manifest_path for each in written]}
    with write_manifest_list(version, io.new_output(listed), 1, None, 1, "deflate") as manifest_list:
        manifest_list.add_manifests(written)
    document = {
        "format-version": version,
        "location": f"file://{directory}",
        "schemas": [schema.model_dump(mode="json") for schema in (OLD_SCHEMA, SCHEMA)],
        "current-schema-id": SCHEMA.schema_id,
        "partition-specs": [spec.model_dump(mode="json") for spec in specs],
        "default-spec-id": 0,
        "current-snapshot-id": 1,
        "snapshots": [snapshot],
    }
    return RandomLakeTable(TableMetadata(document), files, [manifest.manifest_path for manifest in written])


def random_predicate(random: Random, depth: int = 2) -> BooleanExpression:
    """A predicate on columns of SCHEMA."""
    if depth and random.random() < 0.6:
        kind = random.choice((expressions.And, expressions.Or, expressions.Not))
        if kind is expressions.Not:
            return _negated(random_predicate(random, depth - 1))
        joined: BooleanExpression = kind(random_predicate(random, depth - 1), random_predicate(random, depth - 1))
        return joined
    name = random.choice(list(POOLS))
    values = [value for value in POOLS[name] if value == value]
    if name == "u":
        values = [uuid.UUID(bytes=value) for value in values]
    values += _BEYOND.get(name, ())
    value = random.choice(values)
    comparisons: list[Any] = [expressions.EqualTo, expressions.NotEqualTo]
    if name not in ("u", "bo"):
        comparisons += [
            *(expressions.LessThan, expressions.LessThanOrEqual),
            *(expressions.GreaterThan, expressions.GreaterThanOrEqual),
        ]
    if name in ("s", "late"):
        value = value[: random.choice((1, 16, 17, 40))]
        comparisons += [expressions.StartsWith, expressions.NotStartsWith]
    choice = random.random()
    if choice < 0.15:
        nan = [expressions.IsNaN, expressions.NotNaN] if name in ("d", "f", "exact") else []
        unary: BooleanExpression = random.choice([expressions.IsNull, expressions.NotNull, *nan])(name)
        return unary
    if choice < 0.35:
        some = random.sample(values, random.randint(1, min(3, len(values))))
        among: BooleanExpression = random.choice((expressions.In, expressions.NotIn))(name, some)
        return among
    comparison: BooleanExpression = random.choice(comparisons)(name, value)
    return comparison


def _beyond(expression: BooleanExpression) -> bool:
    """Whether it compares with literals beyond the column's range alone: that says no more than that it is not NULL."""
    found: Any = getattr(expression, "literals", None) or [getattr(expression, "literal", None)]
    beyond = [value for values in _BEYOND.values() for value in values]
    return all(getattr(literal, "value", None) in beyond for literal in found)


def _negated(predicate: BooleanExpression) -> BooleanExpression:
    found: BooleanExpression = expressions.Not(predicate)
    return found


def matches(expression: BooleanExpression, row: Row, *, null_differs: bool = False) -> bool:
    """Whether a row matches, one comparison at a time. `null_differs`: NULL matches `!=`, `not in`, `not starts with`
    and `not NaN`, as in some engines, and not only `is null`, as in SQL. Of expressions without `not`."""
    kind = type(expression).__name__.removeprefix("Bound")
    if kind in ("And", "Or"):
        both = [matches(side, row, null_differs=null_differs) for side in (expression.left, expression.right)]  # type: ignore[attr-defined]
        return all(both) if kind == "And" else any(both)
    if kind in ("AlwaysTrue", "AlwaysFalse"):
        return kind == "AlwaysTrue"
    term: Any = expression.term  # type: ignore[attr-defined]
    value = row[term.ref().field.name if hasattr(term, "ref") else term.name]
    if kind in ("IsNull", "NotNull"):
        return (value is None) == (kind == "IsNull")
    if value is None:
        return null_differs and kind.startswith("Not") and not _beyond(expression)
    if kind in ("IsNaN", "NotNaN"):
        return (isinstance(value, float) and math.isnan(value)) == (kind == "IsNaN")
    if kind in ("In", "NotIn"):
        return (value in {literal.value for literal in expression.literals}) == (kind == "In")  # type: ignore[attr-defined]
    literal: Any = expression.literal.value  # type: ignore[attr-defined]
    tests: dict[str, Callable[[], bool]] = {
        "EqualTo": lambda: value == literal,
        "NotEqualTo": lambda: value != literal,
        "LessThan": lambda: value < literal,
        "LessThanOrEqual": lambda: value <= literal,
        "GreaterThan": lambda: value > literal,
        "GreaterThanOrEqual": lambda: value >= literal,
        "StartsWith": lambda: value.startswith(literal),
        "NotStartsWith": lambda: not value.startswith(literal),
    }
    return bool(tests[kind]())


def _spec(random: Random, number: int) -> PartitionSpec:
    names = random.sample(list(_TRANSFORMS), random.choice((0, 1, 1, 2)))
    return PartitionSpec(
        *(
            PartitionField(
                SCHEMA.find_field(name).field_id,
                1000 + 10 * number + place,
                parse_transform(random.choice(_TRANSFORMS[name])),
                f"p{place}",
            )
            for place, name in enumerate(names)
        ),
        spec_id=number,
    )


def _files(random: Random, spec: PartitionSpec, *, rounded_up: bool) -> list[tuple[list[Row], tuple[Any, ...]]]:
    """The rows of each file, and its partition."""
    found = []
    for _ in range(random.randint(1, 3)):
        pools = {name: random.sample(pool, random.randint(1, min(3, len(pool)))) for name, pool in POOLS.items()}
        empty = {name for name in POOLS if random.random() < 0.1}
        rows = [
            {
                name: None if name in empty or random.random() < 0.2 else random.choice(pool)
                for name, pool in pools.items()
            }
            for _ in range(random.randint(1, 4))
        ]
        keyed = [(tuple(_partitioned(row, field, rounded_up=rounded_up) for field in spec.fields), row) for row in rows]
        keyed.sort(key=lambda item: repr(item[0]))
        for _, group in itertools.groupby(keyed, key=lambda item: repr(item[0])):
            members = list(group)
            found.append(([row for _, row in members], members[0][0]))
    return found


def _partitioned(row: Row, field: PartitionField, *, rounded_up: bool) -> Any:
    source = SCHEMA.find_field(field.source_id)
    value = row[source.name]
    result = field.transform.transform(source.field_type)(value)
    if result is None:
        return None
    name = str(field.transform)
    if name.startswith("truncate") and isinstance(source.field_type, IntegerType):
        # Java's integers wrap around.
        return (result + 2**31) % 2**32 - 2**31
    if rounded_up and name in ("year", "month", "day", "hour") and result < 0:
        exact = {"hour": 3_600_000_000, "day": _DAY}.get(name)
        if source.field_type == DateType() and name == "day":
            return result
        return result if exact is not None and value % exact == 0 else result + 1
    return result


def _entry(
    random: Random, path: str, rows: Sequence[Row], partition: tuple[Any, ...], schema: Schema, spec: PartitionSpec
) -> ManifestEntry:
    old = schema is OLD_SCHEMA
    arrow = schema.as_arrow()
    names = {field.field_id: field.name for field in SCHEMA.fields}
    columns, fields = [], []
    for field in schema.fields:
        name = names[field.field_id]
        kind = arrow.field(field.name).type
        values = [row[name] for row in rows]
        kind = _WRITTEN.get(name, kind) if name == "u" or (old and name in _WRITTEN) else kind
        columns.append(pa.array(values, kind))
        fields.append(arrow.field(field.name).with_type(kind))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, pa.schema(fields)), sink, row_group_size=random.choice((1, 2, 4)))
    Path(path.removeprefix("file://")).write_bytes(sink.getvalue())
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    found = data_file_statistics_from_parquet_metadata(
        footer,
        compute_statistics_plan(schema, {"write.metadata.metrics.default": "full"}),
        parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    if random.random() < 0.8:
        # pyiceberg cannot round up U+D7FF, so text is cut by our own writer's rule.
        for field_id, kind in ((4, Kind.STRING), (5, Kind.BINARY), (12, Kind.STRING)):
            _cut(found, field_id, ColumnType(kind))
    for field_id, name in ((3, "d"), (13, "f"), (14, "exact")):
        if field_id in found["value_counts"]:
            nans = sum(row[name] is not None and math.isnan(row[name]) for row in rows)
            found["nan_value_counts"][field_id] = nans
    for key in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        kept = {field_id: value for field_id, value in found[key].items() if random.random() < 0.9}
        found[key] = kept if random.random() < 0.9 else None
    values = [
        uuid.UUID(bytes=value)
        if value is not None and isinstance(value, bytes) and len(value) == 16 and _is_uuid(field)
        else value
        for value, field in zip(partition, spec.fields, strict=True)
    ]
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=100,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **found,
    )
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=None,
        file_sequence_number=None,
        data_file=data_file,
    )


def _cut(metrics: dict[str, Any], field_id: int, kind: ColumnType) -> None:
    for key, cut in (("lower_bounds", lower_bound), ("upper_bounds", upper_bound)):
        if (whole := metrics[key].pop(field_id, None)) is not None and (bound := cut(kind, [whole])) is not None:
            metrics[key][field_id] = bound


def _is_uuid(field: PartitionField) -> bool:
    return field.source_id == SCHEMA.find_field("u").field_id and str(field.transform) == "identity"
