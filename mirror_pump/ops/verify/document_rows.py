"""The rows of an Iceberg table with variants as the texts of their documents, read by the mirror's own code.

No engine but Spark reads variants exactly: DuckDB takes JSON's null for NULL. So what is compared of them, on both
sides, is the text of our decoder.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.printing import print_values
from mirror_pump.engine.comparison.live_rows import KeySet, live_rows
from mirror_pump.engine.comparison.tier_files import NO_END, tier_ranges
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.initial_defaults import default_array
from mirror_pump.lake.format.raw_text_columns import every_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions

_TASK_BYTES = 64 << 20


def has_variants(schema: LakeSchema) -> bool:
    return any(field.type.kind is Kind.VARIANT for field in schema.fields)


def without_variants(schema: LakeSchema) -> LakeSchema:
    """The columns that every engine reads exactly."""
    return replace(schema, fields=tuple(field for field in schema.fields if field.type.kind is not Kind.VARIANT))


def with_documents(schema: LakeSchema) -> LakeSchema:
    """The columns of `document_rows`, with all raw text columns."""
    fields = every_raw_text(schema).fields
    return replace(schema, fields=tuple(replace(field, type=_compared_type(field.type)) for field in fields))


def document_rows(location: str, schema: LakeSchema, storage: StorageOptions) -> pa.RecordBatchReader:
    """The rows of the table with this metadata file, in the columns of `with_documents`. `schema`: the table's, without
    raw text columns. Raises LakeError, also while the rows are read."""
    arrow = with_documents(schema).arrow.remove_metadata()
    return pa.RecordBatchReader.from_batches(arrow, _batches(location, every_raw_text(schema), arrow, storage))


def _batches(location: str, schema: LakeSchema, arrow: pa.Schema, storage: StorageOptions) -> Iterator[pa.RecordBatch]:
    lake = LakeTable.load(location, storage)
    # Without a key nothing is deleted by keys.
    packing = KeyPacking.of(lake.schema, secrets.token_bytes(16)) or KeyPacking((), b"-")
    fields = {field.field_id: field for field in lake.schema.fields}
    for files in tier_ranges(None, lake, 0, NO_END, storage, _TASK_BYTES):
        for rows in live_rows(files, packing):
            live = np.ones(rows.rows, np.bool_)
            if rows.deleted is not None and len(rows.deleted):
                live = ~KeySet(rows.deleted).among(packing.pack([rows.columns[key] for key in lake.schema.key_ids]))
            columns = [
                _column(rows.columns.get(field.field_id), fields.get(field.field_id, field), rows.rows)
                for field in schema.fields
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow).filter(pa.array(live))


def _column(values: pa.Array | None, field: LakeField, rows: int) -> pa.Array:
    if values is None and field.initial_default is not None:
        return pa.repeat(default_array(field.initial_default, field.type)[0], rows)
    if values is None:
        return pa.nulls(rows, _compared_type(field.type).arrow)
    return print_values(values, field.type) if field.type.kind is Kind.VARIANT else values


def _compared_type(column_type: ColumnType) -> ColumnType:
    return ColumnType(Kind.STRING) if column_type.kind is Kind.VARIANT else column_type
