"""Finds a data file's columns by field ID, as Iceberg requires: engines may spell names in Parquet differently."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.errors import LakeError
from mirror_pump.lake.format.schema import FIELD_ID


def column_names(file: pq.ParquetFile, field_ids: Sequence[int], location: str) -> list[str]:
    """The file's own names of these top-level columns, in the same order.

    Iceberg's Java code writes `the key` as `the_x20key`. Raises LakeError, naming `location`, if a column is missing.
    """
    names = names_by_id(file)
    missing = [str(field_id) for field_id in field_ids if field_id not in names]
    if missing:
        raise LakeError(
            f"{location} has no column with field ID {', '.join(missing)}",
            "rewrite the table's files with the engine that wrote this one, or copy the table again",
        )
    return [names[field_id] for field_id in field_ids]


def names_by_id(file: pq.ParquetFile) -> dict[int, str]:
    """The file's own names of its top-level columns, by field ID. A missing column was added later and is all NULL."""
    schema = file.schema_arrow
    return {field_id: schema.names[place] for field_id, place in places_by_id(file).items()}


def plain(column: pa.Array) -> pa.Array:
    """The array without the extension type that pyarrow gives to Parquet's UUID annotation."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def places_by_id(file: pq.ParquetFile) -> dict[int, int]:
    """Indexes of the file's top-level columns, by field ID."""
    return {
        int(field.metadata[FIELD_ID]): place
        for place, field in enumerate(file.schema_arrow)
        if field.metadata and FIELD_ID in field.metadata
    }


def cast_to(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """The column as an array of type `target_type`, also where elements of lists have another type. Raises pyarrow's
    ArrowInvalid for a value that does not fit."""
    column = plain(column)
    if column.type == target_type:
        return column
    if pa.types.is_list(target_type) and pa.types.is_list(column.type):
        # Concatenating the single array makes its offsets begin at zero and drops unused values.
        whole = pa.concat_arrays([column])
        values = cast_to(whole.values, target_type.value_type)
        return pa.ListArray.from_arrays(whole.offsets, values, type=target_type, mask=whole.is_null())
    return column.cast(target_type)
