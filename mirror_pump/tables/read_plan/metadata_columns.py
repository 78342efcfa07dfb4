"""Columns that a scan can return besides a table's own: where a row is, and its lineage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.row_lineage import LAST_UPDATED, LAST_UPDATED_FIELD, ROW_ID, ROW_ID_FIELD
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.tables.read_plan.planned_files import PlannedFile

FILE_COLUMN = NestedField(2147483646, "_file", StringType(), required=True)
"""URI of the row's data file."""
POSITION_COLUMN = NestedField(2147483645, "_pos", LongType(), required=True)
"""The row's number in its file."""
LINEAGE = (
    NestedField(ROW_ID_FIELD, ROW_ID, LongType(), required=False),
    NestedField(LAST_UPDATED_FIELD, LAST_UPDATED, LongType(), required=False),
)
"""NULL in snapshots from before the table was upgraded to format version 3."""
LINEAGE_FIELDS = frozenset(field.field_id for field in LINEAGE)

_COLUMNS = {field.name: field for field in (FILE_COLUMN, POSITION_COLUMN, *LINEAGE)}
FIELDS = frozenset(field.field_id for field in _COLUMNS.values())
"""Field IDs of all of them."""


def projected_columns(metadata: TableMetadata, schema: Schema, columns: Sequence[str] | None) -> Schema:
    """The columns that a scan returns: those of the table in its order, all by default, then columns of this module. A
    column of the table comes before one of the same name here. Raises UsageError."""
    if columns is None:
        return schema
    table_columns = {field.name for field in schema.fields}
    extra = [_COLUMNS[name] for name in dict.fromkeys(columns) if name in _COLUMNS and name not in table_columns]
    named = [name for name in columns if name in table_columns or name not in _COLUMNS]
    if metadata.format_version < VECTOR_VERSION and any(field.field_id in LINEAGE_FIELDS for field in extra):
        raise UsageError(
            f"{metadata.location} has format version {metadata.format_version}: its rows have no lineage",
            f"ask only for tables of format version {VECTOR_VERSION} for {ROW_ID} and {LAST_UPDATED}",
        )
    try:
        selected = schema.select(*named).fields if named else ()
    except ValueError as error:
        raise UsageError(f"the columns {', '.join(columns)}: {error}", "name columns of the table") from error
    return Schema(*selected, *extra)


def lineage_column(field_id: int, stored: pa.Array, positions: pa.Array, file: PlannedFile) -> pa.Array:
    """A lineage column of some rows of a file, from what it has stored for them and their numbers in the file."""
    if file.first_row_id is None:
        return pa.nulls(len(positions), pa.int64())
    if field_id == LAST_UPDATED_FIELD:
        return pc.fill_null(stored, file.sequence_number)
    return pc.coalesce(stored, pc.add(positions, file.first_row_id))


def numbers_from(first: int, rows: int) -> pa.Array:
    """The numbers of rows that follow each other."""
    return pa.array(np.arange(first, first + rows, dtype=np.int64))
