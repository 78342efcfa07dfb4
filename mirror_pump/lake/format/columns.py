"""Finds a data file's columns by field ID, as Iceberg requires: engines may spell names in Parquet differently."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from decoders.variant import VARIANT_ARROW
from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.format.initial_defaults import default_array
from mirror_pump.lake.format.schema import FIELD_ID, LakeField


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


def absent_column(field: LakeField, rows: int) -> pa.Array:
    """A column of so many rows whose file lacks it, since it was added later: its default, or NULL."""
    arrow = field.arrow.type
    if field.initial_default is None:
        return pa.nulls(rows, arrow)
    return pa.repeat(default_array(field.initial_default, field.type)[0], rows).cast(arrow)


def whole_variants(column: pa.Array) -> pa.StructArray:
    """A variant column of any engine's file in our type, as Parquet writes it: no part is NULL, even where the whole
    is, and the order of the parts is the writer's choice. Raises ForeignTable for a shredded one, of which parts are
    columns of their own."""
    if column.type == VARIANT_ARROW and not any(column.field(part.name).null_count for part in VARIANT_ARROW):
        return column
    parts = {part.name: place for place, part in enumerate(column.type)} if pa.types.is_struct(column.type) else {}
    if parts.keys() != {part.name for part in VARIANT_ARROW}:
        raise ForeignTable(
            f"a variant column is stored as {column.type}: shredded variants are not read here",
            "unset the table property write.parquet.shred-variants, and rewrite the table's files",
        )
    columns = column.flatten()
    return pa.StructArray.from_arrays(
        [columns[parts[part.name]].fill_null(b"").cast(part.type) for part in VARIANT_ARROW],
        fields=list(VARIANT_ARROW),
        mask=column.is_null(),
    )


def cast_to(column: pa.Array, target_type: pa.DataType) -> pa.Array:
    """The column as an array of type `target_type`, also where elements of lists have another type. Raises pyarrow's
    ArrowInvalid for a value that does not fit."""
    column = plain(column)
    if column.type == target_type:
        return column
    if target_type == VARIANT_ARROW:
        return whole_variants(column)
    if pa.types.is_list(target_type) and pa.types.is_list(column.type):
        # Concatenating the single array makes its offsets begin at zero and drops unused values.
        whole = pa.concat_arrays([column])
        values = cast_to(whole.values, target_type.value_type)
        return pa.ListArray.from_arrays(whole.offsets, values, type=target_type, mask=whole.is_null())
    return column.cast(target_type)
