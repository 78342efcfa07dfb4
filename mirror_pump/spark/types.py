"""Maps lake types to Spark types, exactly as Iceberg's runtime presents them."""

from __future__ import annotations

import pyspark.sql.types as t

from decoders.columns import ColumnType, Kind

_TYPES = {
    Kind.BOOLEAN: t.BooleanType(),
    Kind.INT: t.IntegerType(),
    Kind.LONG: t.LongType(),
    Kind.FLOAT: t.FloatType(),
    Kind.DOUBLE: t.DoubleType(),
    Kind.STRING: t.StringType(),
    Kind.BINARY: t.BinaryType(),
    Kind.UUID: t.StringType(),
    Kind.DATE: t.DateType(),
    Kind.TIMESTAMP: t.TimestampNTZType(),
    Kind.TIMESTAMPTZ: t.TimestampType(),
}


def spark_type(type: ColumnType) -> t.DataType:  # noqa: A002 - the word of decoders
    """The Spark type of a lake column."""
    if type.kind is Kind.DECIMAL:
        return t.DecimalType(type.precision, type.scale)
    if type.element is not None:
        return t.ArrayType(spark_type(type.element))
    return _TYPES[type.kind]
