"""Raw text columns: they hold values that a column's Iceberg type cannot hold, as text printed by Postgres.

`amount numeric(10,2)` is decimal(10,2) in the lake, which has no NaN. The first NaN adds an optional string column
`amount__raw` to the table. In the row, `amount` is NULL and `amount__raw` is `NaN`. Invariant: at least one of the two
is NULL in each row, and both are NULL if and only if the value is NULL in Postgres.

A raw text column's field ID is its column's plus a constant, like the ID of a list element, so no central counter is
needed. The task that meets the first such value writes a data file with the raw text column, and the publish that
commits the file adds the column to the schema if it is missing. The lake's schema alone records which raw text columns
exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.column_names import folded, free_name
from mirror_pump.lake.format.schema import LakeField, LakeSchema

RAW_TEXT_IDS_FROM = 200_000
"""A raw text column has the ID of its column plus this, beyond columns and list elements (ELEMENT_IDS_FROM)."""
_RAW_TEXT_IDS_BELOW = 300_000
"""Beyond are columns of change feeds alone (mirror_pump.lake.format.feed_schema)."""

_SUFFIX = "__raw"
_TEXT = ColumnType(Kind.STRING)


def raw_text_id(field_id: int) -> int:
    """Field ID of a column's raw text column; `field_id` is the column's."""
    return RAW_TEXT_IDS_FROM + field_id


def is_raw_text(field: LakeField) -> bool:
    return RAW_TEXT_IDS_FROM <= field.field_id < _RAW_TEXT_IDS_BELOW


def without_raw_text(schema: LakeSchema) -> LakeSchema:
    """The schema with only the columns that exist in Postgres."""
    return replace(schema, fields=tuple(field for field in schema.fields if not is_raw_text(field)))


def raw_text_fields(schema: LakeSchema) -> frozenset[int]:
    """Field IDs of the columns that have a raw text column (not of the raw text columns themselves)."""
    return frozenset(field.field_id - RAW_TEXT_IDS_FROM for field in schema.fields if is_raw_text(field))


def with_raw_text(schema: LakeSchema, columns: Iterable[int]) -> LakeSchema:
    """The schema with raw text columns for exactly the columns with the field IDs `columns`, behind all other columns.

    Each raw text column is named after its column in `schema`, so a rename renames both. If an engine would take it for
    another column, underscores are appended.
    """
    plain = without_raw_text(schema)
    field_ids = set(columns)
    taken = {folded(field.name) for field in plain.fields}
    added = []
    # All columns that may ever need one take part in the naming, so a name does not depend on which came first.
    for field in sorted(plain.fields, key=lambda field: field.field_id):
        if not field.type.holds_all:
            name = free_name(field.name + _SUFFIX, taken)
            taken.add(folded(name))
            if field.field_id in field_ids:
                added.append(LakeField(raw_text_id(field.field_id), name, _TEXT, required=False))
    return replace(plain, fields=(*plain.fields, *added))


def every_raw_text(schema: LakeSchema) -> LakeSchema:
    """The schema with raw text columns for all columns that can ever need one."""
    return with_raw_text(schema, (field.field_id for field in schema.fields))


def widened(rows: pa.Table, raw: Mapping[str, pa.ChunkedArray], schema: LakeSchema) -> pa.Table:
    """The rows with all raw text columns of `every_raw_text(schema)`. `raw`: raw text values, by the name of their
    column."""
    names = {raw_text_id(field.field_id): field.name for field in schema.fields}
    for field in every_raw_text(schema).fields:
        if is_raw_text(field):
            values = raw.get(names[field.field_id])
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, pa.string()) if values is None else values)
    return rows


def narrowed(rows: pa.Table, schema: LakeSchema) -> tuple[pa.Table, LakeSchema]:
    """The `widened` rows without raw text columns that are entirely NULL, and the schema of a file of these rows."""
    used = [
        field.field_id - RAW_TEXT_IDS_FROM
        for field in every_raw_text(schema).fields
        if is_raw_text(field) and rows.column(field.name).null_count < rows.num_rows
    ]
    file_schema = with_raw_text(schema, used)
    return rows.select(file_schema.arrow.names), file_schema
