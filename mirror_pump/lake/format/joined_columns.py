"""Adds a column to a Parquet file without decoding what the file has: its bytes stay, the column and a footer follow.

Of the footer only what changes is decoded (parquet.thrift: FileMetaData, SchemaElement, RowGroup, ColumnChunk,
ColumnMetaData).
"""

from __future__ import annotations

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.lake.format.data_files import compression
from mirror_pump.lake.format.footers import MAGIC, FooterStruct, ended, split_footer


def with_column(content: bytes | memoryview, field: pa.Field, values: pa.Array) -> bytes:
    """The content of a Parquet file with one more column, the last one. `values`: for each row of the file, in order.

    `field` has the metadata PARQUET:field_id. Time and memory: those of a copy, and what the column takes. Raises
    ValueError if this is no Parquet file of so many rows.
    """
    end, footer = split_footer(content)
    groups = [FooterStruct.of(group) for group in footer.items(4)]
    rows = [group.integer(3) for group in groups]
    if sum(rows) != len(values):
        raise ValueError(f"the file has {sum(rows)} rows, the column {len(values)}")
    added = _column_file(field, values, rows)
    added_end, added_footer = split_footer(added)
    shift = end - len(MAGIC)
    columns = [FooterStruct.of(group) for group in added_footer.items(4)]
    schema = footer.items(2)
    root = FooterStruct.of(schema[0])
    footer = footer.with_items(2, [root.plus(5, 1).encoded(), *schema[1:], added_footer.items(2)[1]])
    footer = footer.with_items(
        4, [_joined(group, column, shift).encoded() for group, column in zip(groups, columns, strict=True)]
    )
    if footer.has(7) and added_footer.has(7):
        footer = footer.with_items(7, [*footer.items(7), *added_footer.items(7)])
    return b"".join((content[:end], added[len(MAGIC) : added_end], ended(footer)))


def _column_file(field: pa.Field, values: pa.Array, rows: list[int]) -> bytes:
    """A file of the column alone, with row groups of these sizes."""
    sink = BytesIO()
    schema = pa.schema([field])
    options = {"use_dictionary": False, "store_schema": False, **compression(values.nbytes)}
    with pq.ParquetWriter(sink, schema, **options) as writer:
        first = 0
        for number in rows:
            part = pa.table([values.slice(first, number)], schema=schema)
            writer.write_table(part, row_group_size=max(number, 1))
            first += number
    return sink.getvalue()


def _joined(group: FooterStruct, column: FooterStruct, shift: int) -> FooterStruct:
    """A row group with the only column of another one, whose bytes move by so many."""
    (chunk,) = column.items(1)
    group = group.with_items(1, [*group.items(1), _moved(FooterStruct.of(chunk), shift).encoded()])
    for size in (2, 6):
        if group.has(size):
            group = group.plus(size, column.integer(size))
    return group


def _moved(chunk: FooterStruct, shift: int) -> FooterStruct:
    """A column chunk whose bytes move by so many."""
    metadata = FooterStruct.of(chunk.raw(3))
    for offset in (9, 10, 11):
        if metadata.has(offset):
            metadata = metadata.plus(offset, shift)
    if chunk.integer(2):
        chunk = chunk.plus(2, shift)
    return chunk.with_raw(3, metadata.encoded())
