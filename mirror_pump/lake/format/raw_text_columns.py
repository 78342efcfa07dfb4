"""Sidecar columns: where a value goes, as Postgres prints it, that its own column's Iceberg type cannot hold.

`amount numeric(10,2)` is decimal(10,2) in the lake, which has no NaN. The first NaN brings an optional string column
`amount__raw` to the table; the row's `amount` is NULL and its `amount__raw` is `NaN`. Invariant: of a row's two
cells one at least is NULL, and both are NULL if and only if the value is NULL in Postgres.

A sidecar's field ID is its column's plus a constant, as a list element's is. So nobody has to hand IDs out: the task
that meets the first such value writes a data file with the sidecar in it, and the publish that names the file adds
the column to the schema if it is not there yet. The lake's schema is all there is to know about which sidecars exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.schema import LakeField, LakeSchema

SIDECAR_IDS_FROM = 200_000
"""A sidecar has the ID of its column plus this: out of reach of columns and of list elements (ELEMENT_IDS_FROM)."""

_SUFFIX = "__raw"
_TEXT = ColumnType(Kind.STRING)


def raw_text_id(field_id: int) -> int:
    """The field ID of the sidecar of the column with this one."""
    return SIDECAR_IDS_FROM + field_id


def is_raw_text(field: LakeField) -> bool:
    return field.field_id >= SIDECAR_IDS_FROM


def without_raw_text(schema: LakeSchema) -> LakeSchema:
    """The schema's columns that have one in Postgres."""
    return replace(schema, fields=tuple(field for field in schema.fields if not is_raw_text(field)))


def raw_text_fields(schema: LakeSchema) -> frozenset[int]:
    """Field IDs of the columns (not: of the sidecars) that have a sidecar."""
    return frozenset(field.field_id - SIDECAR_IDS_FROM for field in schema.fields if is_raw_text(field))


def with_raw_text(schema: LakeSchema, columns: Iterable[int]) -> LakeSchema:
    """The schema with sidecars, behind the other columns, for those with the field IDs `columns`; no others.

    Each is named after its column as that is called in `schema`: a rename renames both. A name that is taken, in
    whatever case (Spark folds names), gets underscores at its end.
    """
    own = without_raw_text(schema)
    wanted = set(columns)
    taken = {field.name.lower() for field in own.fields}
    added = []
    # All columns that may ever have one take part in the naming: a name does not depend on who came first.
    for field in sorted(own.fields, key=lambda field: field.field_id):
        if not field.type.holds_all:
            name = field.name + _SUFFIX
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            if field.field_id in wanted:
                added.append(LakeField(raw_text_id(field.field_id), name, _TEXT, required=False))
    return replace(own, fields=(*own.fields, *added))


def every_raw_text(schema: LakeSchema) -> LakeSchema:
    """The schema with all sidecars that its columns can come to need."""
    return with_raw_text(schema, (field.field_id for field in schema.fields))


def widened(rows: pa.Table, raw: Mapping[str, pa.ChunkedArray], schema: LakeSchema) -> pa.Table:
    """Rows with all sidecars of `every_raw_text(schema)`: `raw` holds those that have values, by their column's
    name."""
    own = {raw_text_id(field.field_id): field.name for field in schema.fields}
    for field in every_raw_text(schema).fields:
        if is_raw_text(field):
            values = raw.get(own[field.field_id])
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, pa.string()) if values is None else values)
    return rows


def narrowed(rows: pa.Table, schema: LakeSchema) -> tuple[pa.Table, LakeSchema]:
    """`widened` rows without the sidecars that are NULL throughout, and the schema of a file of them."""
    used = [
        field.field_id - SIDECAR_IDS_FROM
        for field in every_raw_text(schema).fields
        if is_raw_text(field) and rows.column(field.name).null_count < rows.num_rows
    ]
    file_schema = with_raw_text(schema, used)
    return rows.select(file_schema.arrow.names), file_schema
