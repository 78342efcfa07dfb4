"""The columns by which a row can be followed through a table's snapshots (Iceberg spec, row lineage, format version 3).

A data file may have them, for rows that came from other files. A row without a value gets it from its file: the ID of
the file's first row plus its number in the file, and the file's data sequence number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.schema import LakeField, LakeSchema

ROW_ID = "_row_id"
"""Stays with a row for as long as the row is in the table."""
LAST_UPDATED = "_last_updated_sequence_number"
"""Sequence number of the commit that changed the row last."""
ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
"""Field IDs (Iceberg spec, reserved field IDs)."""
_LINEAGE_VERSION = 3


def has_lineage(format_version: int) -> bool:
    """Whether rows of tables of this format version have IDs."""
    return format_version >= _LINEAGE_VERSION


def with_lineage(schema: LakeSchema) -> LakeSchema:
    """The schema of files that have both columns, as their last ones. Readers find them by field ID, so that a column
    of the table may have such a name."""
    names = {field.name for field in schema.fields}
    added = []
    for name, field_id in ((ROW_ID, ROW_ID_FIELD), (LAST_UPDATED, LAST_UPDATED_FIELD)):
        while name in names:
            name += "_"
        added.append(LakeField(field_id, name, ColumnType(Kind.LONG), required=False))
    return LakeSchema(schema.schema_id, (*schema.fields, *added), schema.key_ids)


def row_id_field(schema: LakeSchema) -> pa.Field:
    """The column of row IDs in files of a table with these columns."""
    return with_lineage(schema).fields[-2].arrow


def lineage_of(
    columns: Mapping[int, pa.Array], first: int, rows: int, first_row_id: int, sequence_number: int
) -> tuple[pa.Array, pa.Array]:
    """Both columns of some rows that follow each other in a file, without a NULL. `columns`: what the file has, by
    field ID. `first`: the number of the first row in the file. `first_row_id` and `sequence_number` are the file's."""
    begin = first_row_id + first
    row_ids = pa.array(np.arange(begin, begin + rows, dtype=np.int64))
    if (stored := columns.get(ROW_ID_FIELD)) is not None:
        row_ids = pc.coalesce(stored, row_ids)
    updated = columns.get(LAST_UPDATED_FIELD)
    if updated is None:
        return row_ids, pa.repeat(pa.scalar(sequence_number, pa.int64()), rows)
    return row_ids, pc.fill_null(updated, sequence_number)
