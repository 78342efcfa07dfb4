"""Which row groups of a Parquet file may have matching rows, by the same rule as files (value_tests.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression, BoundPredicate
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from mirror_pump.tables.read_plan.ordered_values import is_float
from mirror_pump.tables.read_plan.predicates import always, columns_of, folded
from mirror_pump.tables.read_plan.value_tests import UNKNOWN, ValueRange, may_match


def chosen_groups(
    file: pq.ParquetFile, leaves: Mapping[int, int], predicate: BooleanExpression, schema: Schema
) -> list[int]:
    """Numbers of the row groups that may have matching rows. `leaves`: indexes of the file's top-level columns of
    primitive types among its leaf columns, by field ID. `schema`: what the predicate is bound to."""
    test = folded(predicate, _column_test)
    groups = range(file.num_row_groups)
    if test is always:
        return list(groups)
    tested_leaves = {field: leaves[field] for field in columns_of(predicate) if field in leaves}
    arrow = file.schema_arrow
    kinds = {
        field: (schema.find_type(field), arrow.field(place)) for field, place in _places(arrow, tested_leaves).items()
    }
    return [
        group
        for group in groups
        if test(
            {
                field: _range(file.metadata.row_group(group).column(tested_leaves[field]), kind, arrow_field.type)
                for field, (kind, arrow_field) in kinds.items()
            }
        )
    ]


def _column_test(comparison: BoundPredicate) -> Callable[[Mapping[int, ValueRange]], bool]:
    test, field_id = may_match(comparison), comparison.term.ref().field.field_id
    return lambda ranges: test(ranges.get(field_id, UNKNOWN))


def _places(arrow: pa.Schema, leaves: Mapping[int, int]) -> dict[int, int]:
    """Indexes of the file's columns by field ID, for files without structs before them, in which leaves are columns."""
    flat = not any(pa.types.is_nested(field.type) for field in arrow)
    return dict(leaves) if flat else {}


def _range(chunk: pq.ColumnChunkMetaData, kind: IcebergType, arrow_type: pa.DataType) -> ValueRange:
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN
    nulls = not statistics.has_null_count or statistics.null_count != 0
    values = not statistics.has_null_count or statistics.null_count < chunk.num_values
    low = high = None
    if statistics.has_min_max and _comparable(kind, arrow_type):
        low, high = _ordered(kind, statistics.min_raw), _ordered(kind, statistics.max_raw)
        if low != low or high != high:  # NaN differs from itself.
            low = high = None
    return ValueRange(low, high, nulls, is_float(kind), values)


def _comparable(kind: IcebergType, arrow_type: pa.DataType) -> bool:
    """Whether the file's raw statistics are values of the type, or of a narrower one."""
    match kind:
        case IntegerType() | LongType():
            return bool(pa.types.is_signed_integer(arrow_type))
        case FloatType() | DoubleType():
            return bool(pa.types.is_float32(arrow_type) or pa.types.is_float64(arrow_type))
        case StringType():
            return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))
        case BinaryType():
            return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))
        case TimestampType() | TimestamptzType():
            return bool(pa.types.is_timestamp(arrow_type) and arrow_type.unit == "us")
        case TimeType():
            return bool(arrow_type == pa.time64("us"))
        case DateType():
            return bool(arrow_type == pa.date32())
        case DecimalType():
            return bool(pa.types.is_decimal128(arrow_type) and arrow_type.scale == kind.scale)
        case BooleanType():
            return bool(pa.types.is_boolean(arrow_type))
    return False


def _ordered(kind: IcebergType, raw: Any) -> Any:
    if isinstance(kind, DecimalType) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw
