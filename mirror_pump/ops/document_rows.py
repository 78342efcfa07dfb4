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

from decoders.printing import print_values
from mirror_pump.engine.comparison.live_rows import KeySet, live_rows
from mirror_pump.engine.comparison.tier_files import NO_END, tier_ranges
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.next_metadata import seam_metadata
from mirror_pump.lake.format.columns import cast_to
from mirror_pump.lake.format.initial_defaults import Default, default_array
from mirror_pump.lake.format.raw_text_columns import every_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions

_TASK_BYTES = 64 << 20


def has_variants(schema: LakeSchema) -> bool:
    return any(field.type.is_document for field in schema.fields)


def without_variants(schema: LakeSchema) -> LakeSchema:
    """The columns that every engine reads exactly."""
    return replace(schema, fields=tuple(field for field in schema.fields if not field.type.is_document))


def with_documents(schema: LakeSchema) -> LakeSchema:
    """The columns of `document_rows`, with all raw text columns."""
    fields = every_raw_text(schema).fields
    return replace(schema, fields=tuple(replace(field, type=field.type.as_text) for field in fields))


def document_rows(
    location: str, schema: LakeSchema, storage: StorageOptions, snapshot_id: int | None = None
) -> pa.RecordBatchReader:
    """The rows of a snapshot of the table with this metadata file, by default the current one, in the columns of
    `with_documents`. `schema`: the table's, without raw text columns. Raises LakeError, also while the rows are read.
    """
    arrow = with_documents(schema).arrow.remove_metadata()
    lake = LakeTable.load(location, storage)
    if snapshot_id is not None and snapshot_id != lake.metadata.current_snapshot_id:
        lake = _at(lake, snapshot_id)
    return pa.RecordBatchReader.from_batches(arrow, _batches(lake, every_raw_text(schema), arrow))


def _at(lake: LakeTable, snapshot_id: int) -> LakeTable:
    """The table as of one of its snapshots."""
    snapshot = lake.metadata.snapshot(snapshot_id)
    if snapshot is None:
        raise LakeError(f"{lake.metadata_location} does not have the snapshot {snapshot_id}", "try again")
    manifests = read_list(snapshot, lake.storage)
    return replace(lake, metadata=seam_metadata(lake.metadata, snapshot), manifests=manifests)


def _batches(lake: LakeTable, schema: LakeSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    # Without a key nothing is deleted by keys.
    packing = KeyPacking.of(lake.schema, secrets.token_bytes(16)) or KeyPacking((), b"-")
    defaults = {field.field_id: field.initial_default for field in lake.schema.fields}
    for files in tier_ranges(None, lake, 0, NO_END, lake.storage, _TASK_BYTES):
        for rows in live_rows(files, packing):
            live = np.ones(rows.rows, np.bool_)
            if rows.deleted is not None and len(rows.deleted):
                live = ~KeySet(rows.deleted).among(packing.pack([rows.columns[key] for key in lake.schema.key_ids]))
            columns = [
                _column(rows.columns.get(field.field_id), field, defaults.get(field.field_id), rows.rows)
                for field in schema.fields
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow).filter(pa.array(live))


def _column(values: pa.Array | None, field: LakeField, default: Default, rows: int) -> pa.Array:
    if values is None and default is not None:
        return pa.repeat(default_array(default, field.type)[0], rows)
    if values is None:
        return pa.nulls(rows, field.type.as_text.arrow)
    if field.type.is_document:
        return print_values(values, field.type)
    return cast_to(values, field.type.arrow)
