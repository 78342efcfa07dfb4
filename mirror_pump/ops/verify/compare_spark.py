"""Compares two Iceberg tables row by row with Spark, so that an independent engine applies the delete files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import VariantVal

from decoders.variant_texts import document_text
from mirror_pump.database.quoting import spark_identifier
from mirror_pump.lake.format.raw_text_columns import every_raw_text, is_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.iceberg_io import table_frame
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.model import TierKind
from mirror_pump.ops.verify.comparison import (
    ALL_ROWS,
    SHOWN_ROWS,
    ComparedRows,
    Comparison,
    difference,
    is_floating,
    is_temporal,
)

_LOCAL_FILES = StorageOptions()


def compare(
    spark: SparkSession,
    heap_location: str,
    lake_location: str,
    schema: LakeSchema,
    rows: ComparedRows = ALL_ROWS,
    *,
    shown: int = SHOWN_ROWS,
    storage: StorageOptions = _LOCAL_FILES,
) -> Comparison:
    """Compare the tables of two metadata files. They have the columns of `schema`, and its raw text columns as needed.

    A raw text column that one side lacks counts as NULL. NULL equals NULL, NaN equals NaN, -0 differs from 0, and a key
    that occurs twice on one side is a difference.
    Without a key whole rows are compared, each as often as it occurs. The result contains the first `shown` differing
    rows.
    """
    tables = [_table(spark, location, storage) for location in (heap_location, lake_location)]
    if (line := rows.line) is not None:
        tables = [
            table.where(_tier_value(line.kind, f.col(spark_identifier(line.name))) >= line.cut) for table in tables
        ]
    needed = {name for table in tables for name in table.columns}
    fields = [field for field in every_raw_text(schema).fields if not is_raw_text(field) or field.name in needed]
    schema = replace(schema, fields=tuple(fields))
    keys = [field.name for field in schema.fields if field.field_id in schema.key_ids or not schema.key_ids]
    values = [field.name for field in schema.fields if field.name not in keys]
    heap, lake = (_prepared(table, schema) for table in tables)
    joined = _numbered(heap, keys, "h").join(
        _numbered(lake, keys, "l"),
        on=reduce(
            Column.__and__, [*(_side("h", k).eqNullSafe(_side("l", k)) for k in keys), f.col("hn") == f.col("ln")]
        ),
        how="full_outer",
    )
    has_row = {side: f.col(f"{side}n").isNotNull() for side in "hl"}
    if (kept_ranges := rows.kept_ranges) is not None:
        value = _tier_value(kept_ranges.kind, _side("l", kept_ranges.name))
        within = reduce(Column.__or__, [(value >= at.lower) & (value < at.upper) for at in kept_ranges.bounds])
        joined = joined.where(has_row["h"] | (f.col("ln") > 1) | ~within)
    same = reduce(Column.__and__, [_side("h", v).eqNullSafe(_side("l", v)) for v in values], f.lit(True))  # noqa: FBT003
    differing = joined.where(~(has_row["h"] & has_row["l"] & same))
    counts = joined.agg(
        f.count(f.when(has_row["h"], 1)),
        f.count(f.when(has_row["l"], 1)),
        f.count(f.when(~(has_row["h"] & has_row["l"] & same), 1)),
    ).first()
    assert counts is not None
    examples = differing.limit(shown).select(_printable(schema)).collect() if counts[2] else []
    differences = tuple(difference(row.asDict(), keys, values) for row in examples)
    return Comparison(counts[0], counts[1], counts[2], differences)


def _table(spark: SparkSession, location: str, storage: StorageOptions) -> DataFrame:
    if local_path(location) is not None:
        return spark.read.format("iceberg").load(location)
    return table_frame(spark, location, storage.properties_of(location))


def _tier_value(kind: TierKind, column: Column) -> Column:
    """The tier key as a number that can be compared with tier values."""
    match kind:
        case TierKind.DATE:
            return f.unix_date(column)
        case TierKind.TIMESTAMP | TierKind.TIMESTAMPTZ:
            return f.unix_micros(column.cast("timestamp"))
        case _:
            return column


def _prepared(table: DataFrame, schema: LakeSchema) -> DataFrame:
    columns = set(table.columns)
    return table.select(
        [
            f.lit(None).cast("string").alias(field.name)
            if is_raw_text(field) and field.name not in columns
            else _exact(field)
            for field in schema.fields
        ]
    )


def _exact(field: LakeField) -> Column:
    """The column in a form in which only identical values are equal: to Spark -0.0 equals 0.0, also within a list."""
    column = f.col(spark_identifier(field.name))
    if field.type.is_document:
        return _document(column).alias(field.name)
    return (column.cast("string") if is_floating(field) else column).alias(field.name)


def _document(column: Column) -> Column:
    """The texts of documents by the mirror's own decoder: Spark prints numbers in another way."""

    def text_of(variant: VariantVal | None) -> str | None:
        return None if variant is None else document_text(bytes(variant.metadata), bytes(variant.value))

    return f.udf(text_of, "string", useArrow=False)(column)


def _printable(schema: LakeSchema) -> list[Column]:
    """Both sides' columns, dates and times as text: Python's years end at 1 and 9999, Postgres's do not."""
    selected = [f.col("hn"), f.col("ln")]
    for field in schema.fields:
        for side in "hl":
            column = _side(side, field.name)
            selected.append(column.cast("string").alias(f"{side}_{field.name}") if is_temporal(field) else column)
    return selected


def _numbered(table: DataFrame, keys: Sequence[str], side: str) -> DataFrame:
    """The columns prefixed by the side, and the row's number among those of its key: always 1 if keys are unique."""
    renamed = table.select([f.col(spark_identifier(name)).alias(f"{side}_{name}") for name in table.columns])
    from pyspark.sql import Window

    return renamed.withColumn(
        f"{side}n", f.row_number().over(Window.partitionBy(*(_side(side, key) for key in keys)).orderBy(f.lit(1)))
    )


def _side(side: str, name: str) -> Column:
    return f.col(spark_identifier(f"{side}_{name}"))
