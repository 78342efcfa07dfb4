"""A pinned snapshot as a Spark DataFrame, read by Iceberg's runtime, whatever catalogs the session has."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundSetPredicate,
    BoundStartsWith,
    Or,
)
from pyiceberg.schema import Accessor, Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    FixedType,
    IcebergType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from mirror_pump.database.quoting import spark_identifier
from mirror_pump.errors import UsageError
from mirror_pump.lake.iceberg_io import table_frame
from mirror_pump.tables.read_plan.ordered_values import is_float
from mirror_pump.tables.read_plan.planned_files import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def scanned_frame(spark: SparkSession, plan: ReadPlan, metadata_location: str | None) -> DataFrame:
    """The rows of a plan, which was made from this metadata file. Raises UsageError without one."""
    if metadata_location is None:
        raise UsageError("the plan does not know its metadata file", "give the scan its metadata_location")
    names = [spark_identifier(field.name) for field in plan.projection.fields]
    if plan.snapshot_id is None:
        return table_frame(spark, metadata_location, {}).select(names)
    remote = not metadata_location.startswith(("/", "file:"))
    properties = plan.storage.properties_of(metadata_location) if remote else {}
    # The table's current schema reads its current snapshot, as in the plan; others are read by their own.
    current = plan.snapshot_id == plan.metadata.current_snapshot_id
    frame = table_frame(spark, metadata_location, properties, None if current else plan.snapshot_id)
    if plan.predicate is not AlwaysTrue():
        frame = frame.filter(_condition(plan.predicate, plan.schema))
    return frame.select(names)


def _condition(expression: BooleanExpression, schema: Schema) -> Column:
    import pyspark.sql.functions as f

    if isinstance(expression, And):
        return _condition(expression.left, schema) & _condition(expression.right, schema)
    if isinstance(expression, Or):
        return _condition(expression.left, schema) | _condition(expression.right, schema)
    if isinstance(expression, BoundPredicate):
        return _compared(expression, schema)
    return f.lit(expression is not AlwaysFalse())


def _compared(predicate: BoundPredicate, schema: Schema) -> Column:
    import pyspark.sql.functions as f

    field = predicate.term.ref().field
    column = f.col(".".join(map(spark_identifier, _path(predicate.term.ref().accessor, schema))))
    match predicate:
        case BoundIsNull():
            return column.isNull()
        case BoundNotNull():
            return column.isNotNull()
        case BoundIsNaN():
            return column.isNotNull() & f.isnan(column)
        case BoundNotNaN():
            return column.isNotNull() & ~f.isnan(column)
    if isinstance(predicate, BoundSetPredicate):
        is_among = column.isin([_literal(literal.value, field.field_type) for literal in predicate.literals])
        return is_among if isinstance(predicate, BoundIn) else ~is_among
    assert isinstance(predicate, BoundLiteralPredicate)
    literal = _literal(predicate.literal.value, field.field_type)
    # To Spark, NaN is greater than all other numbers.
    number = ~f.isnan(column) if is_float(field.field_type) else f.lit(True)  # noqa: FBT003 - a value
    match predicate:
        case BoundEqualTo():
            return column == literal
        case BoundNotEqualTo():
            return column != literal
        case BoundLessThan():
            return column < literal
        case BoundLessThanOrEqual():
            return (column <= literal) & number
        case BoundGreaterThan():
            return (column > literal) & number
        case BoundGreaterThanOrEqual():
            return (column >= literal) & number
        case BoundStartsWith():
            return column.startswith(literal)
        case BoundNotStartsWith():
            return ~column.startswith(literal)
    raise NotImplementedError(str(predicate))


def _path(accessor: Accessor, schema: Schema) -> list[str]:
    """The names from a column to the field in its structs. Any of them may have dots."""
    fields = schema.fields
    names = []
    inner: Accessor | None = accessor
    while inner is not None:
        field = fields[inner.position]
        names.append(field.name)
        if isinstance(field.field_type, StructType):
            fields = field.field_type.fields
        inner = inner.inner
    return names


def _literal(value: Any, kind: IcebergType) -> Column:
    """A literal of Spark's type for the column, whatever the session's time zone."""
    import pyspark.sql.functions as f

    match kind:
        case DateType():
            return f.expr(f"date_from_unix_date({value})")
        case TimestamptzType():
            return f.expr(f"timestamp_micros({value})")
        case TimestampType():
            seconds, micros = divmod(value, 1_000_000)
            days, seconds = divmod(seconds, 86_400)
            exact = f"make_dt_interval({days}, 0, 0, {seconds}.{micros:06d})"
            return f.expr(f"TIMESTAMP_NTZ '1970-01-01 00:00:00' + {exact}")
        case UUIDType():
            return f.lit(str(uuid.UUID(bytes=value)))
        case BinaryType() | FixedType():
            return f.lit(bytearray(value))
    return f.lit(value)
