"""Projects a segment's rows from before a schema change onto the table's later columns, by field ID."""

from __future__ import annotations

import pyarrow as pa

from decoders.segment import IncompleteRows
from mirror_pump.lake.format.initial_defaults import initial_scalar
from mirror_pump.model import Column, MirroredTable


def project_rows(rows: IncompleteRows, former: MirroredTable, table: MirroredTable) -> IncompleteRows:
    """Project `rows`, which have the columns of `former`, onto the columns of `table`.

    Columns are renamed, dropped and widened. New columns hold NULL or the value that existing rows have in them. Only
    rows that are not written yet need this: readers find columns in files by field ID, or the files are filled.
    """
    before = {column.field_id: column.name for column in former.columns}

    def cells(source: pa.Table, column: Column, absent: pa.Scalar) -> pa.ChunkedArray:
        name = before.get(column.field_id)
        if name is None:
            return pa.chunked_array([pa.repeat(absent, source.num_rows)])
        return source.column(name).cast(absent.type)

    def keys(source: pa.Table) -> pa.Table:
        names = [column.name for column in table.key_columns]
        nulls = [pa.scalar(None, column.type.arrow) for column in table.key_columns]
        return pa.table(
            [cells(source, column, null) for column, null in zip(table.key_columns, nulls, strict=True)], names=names
        )

    names = [column.name for column in table.columns]
    later = {column.field_id: column.name for column in table.columns}
    return IncompleteRows(
        rows=pa.table([cells(rows.rows, column, initial_scalar(column)) for column in table.columns], names=names),
        raw={
            later[column.field_id]: rows.raw[column.name]
            for column in former.columns
            if column.name in rows.raw and column.field_id in later
        },
        missing=pa.table([cells(rows.missing, column, pa.scalar(False)) for column in table.columns], names=names),  # noqa: FBT003
        lookup_keys=keys(rows.lookup_keys),
    )
