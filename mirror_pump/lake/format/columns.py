"""Finds a data file's columns by their field IDs, as Iceberg wants: engines spell names in Parquet as they like."""

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
    missing = [str(one) for one in field_ids if one not in names]
    if missing:
        raise LakeError(
            f"{location} has no column of field ID {', '.join(missing)}",
            "rewrite the table's files with the engine that wrote this one, or copy the table again",
        )
    return [names[one] for one in field_ids]


def names_by_id(file: pq.ParquetFile) -> dict[int, str]:
    """The file's own names of its top-level columns. One that it lacks came to the table later: NULL in all rows."""
    schema = file.schema_arrow
    return {field_id: schema.names[place] for field_id, place in places_by_id(file).items()}


def plain(column: pa.Array) -> pa.Array:
    """Without the extension type that Parquet's UUID annotation is read as."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def places_by_id(file: pq.ParquetFile) -> dict[int, int]:
    """Where the file's top-level columns are, by their field IDs."""
    return {
        int(field.metadata[FIELD_ID]): place
        for place, field in enumerate(file.schema_arrow)
        if field.metadata and FIELD_ID in field.metadata
    }
