"""Says whether the rows that the lake has of a table can be compared with its heap, so that a copy replaces only those
that differ. Pure functions."""

from __future__ import annotations

from mirror_pump.lake.format.partitioning import same_partitions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import Column, MirroredTable


def rows_are_comparable(former_table: MirroredTable, table: MirroredTable) -> bool:
    """Whether the files that were written for `former_table` can stay when `table` is copied.

    The values need no proof, since they are compared. But the files have to be divided as new ones are. A column has to
    have the type and the mask that it had: all files are read by the present ones, equality deletes name the key's
    columns, and of a column that became another one in the lake every row differs. A column with a value for older rows
    (`Column.initial`) would be filled in rows in which the heap has NULL, and which are equal without it.
    """
    former_columns = {column.attnum: column for column in former_table.columns}
    return (
        not table.keyless
        and same_partitions(former_table.partitioning, table.partitioning)
        and KeyPacking.of(LakeSchema.of_table(table), b"-") is not None
        and {column.attnum for column in former_table.key_columns} == {column.attnum for column in table.key_columns}
        and all(_is_comparable(former_columns.get(column.attnum), column) for column in table.columns)
    )


def _is_comparable(former_column: Column | None, column: Column) -> bool:
    if former_column is None:
        return column.initial is None
    same_place = former_column.field_id == column.field_id and former_column.type == column.type
    return same_place and column.initial in (None, former_column.initial)
