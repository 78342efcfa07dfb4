"""Writes rows as data files of a table, one for each of its partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from decoders.columns import ColumnType, Kind
from decoders.text import parse_column
from decoders.variant import VARIANT_ARROW
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.columns import plain, whole_variants
from mirror_pump.lake.format.footers import VariantFile
from mirror_pump.lake.format.partitioning import Values, partition_key
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.storage import StagedFiles, StorageOptions, join, open_output
from mirror_pump.tables.metadata.variant_type import is_variant, without_variants
from mirror_pump.tables.read_plan.metadata_columns import FILE_COLUMN, LINEAGE, POSITION_COLUMN
from mirror_pump.tables.table.described_files import current_schema
from mirror_pump.tables.table.partition_values import (
    PartitionColumn,
    PartitionOutOfRange,
    partition_columns,
    plain_values,
)
from mirror_pump.tables.table.table_errors import FileRefused, SchemaMismatch

_COMPRESSION = "zstd"
_SHOWN = 80
"""Characters of a document in an error."""


def write_rows(rows: pa.Table, metadata: TableMetadata, storage: StorageOptions) -> tuple[str, ...]:
    """The URIs of the new files. Columns are matched by name; those that the table lacks come last, with new field IDs.

    Raises SchemaMismatch for values that do not fit the table's types, FileRefused for a row whose partition does not
    fit the partition field's, and LakeError if the storage fails: then no file
    is left.
    """
    lineage = LINEAGE if metadata.format_version >= VECTOR_VERSION else ()
    schema = _extended(current_schema(metadata), rows, metadata.last_column_id, lineage)
    table = _cast(rows, schema, metadata.location)
    field_ids = {field.field_id for field in schema.fields}
    # A column that the rows lack is NULL in all of them.
    columns = [
        column
        for column in partition_columns(metadata.default_spec, current_schema(metadata))
        if column.source_id in field_ids
    ]
    variants = [field.name for field in schema.fields if is_variant(field.field_type)]
    root = metadata.properties.get("write.data.path") or join(metadata.location, "data")
    with StagedFiles(storage) as written:
        for part in _divided(table, schema, columns, metadata.location):
            location = join(root, f"{uuid.uuid4().hex}.parquet")
            written.add(location)
            with open_output(location, storage) as sink:
                _write(part, sink, variants)
    return written.locations


def _write(rows: pa.Table, sink: pa.NativeFile, variants: Sequence[str]) -> None:
    """Writes rows as a file. `variants`: names of the columns that are such."""
    if not variants:
        pq.write_table(rows, sink, compression=_COMPRESSION, store_decimal_as_integer=True)
        return
    file = VariantFile(sink)
    with pq.ParquetWriter(
        pa.PythonFile(file, "w"),
        rows.schema,
        compression=_COMPRESSION,
        store_decimal_as_integer=True,
    ) as writer:
        writer.write_table(rows)
        file.begin_footer()
    file.end(variants)


def _extended(schema: Schema, rows: pa.Table, last_id: int, lineage: Sequence[NestedField]) -> Schema:
    """The columns that the rows have, in the table's order, then those of their lineage."""
    fields = [field for field in schema.fields if field.name in rows.column_names]
    columns = {field.name for field in schema.fields}
    further = [field for field in lineage if field.name in rows.column_names and field.name not in columns]
    columns |= {field.name for field in further}
    for name in {FILE_COLUMN.name, POSITION_COLUMN.name} & {*rows.column_names} - columns if lineage else ():
        raise SchemaMismatch(f"{name} says where a row was, and is no column of the table", "leave it out")
    new = [column for column in rows.schema if column.name not in columns]
    if new:
        try:
            new_fields = _pyarrow_to_schema_without_ids(pa.schema(new)).fields
        except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
            raise SchemaMismatch(f"no Iceberg table can have these columns: {error}", "choose other types") from error
        for number, column in enumerate(new_fields, last_id + 1):
            if not column.field_type.is_primitive:
                raise SchemaMismatch(f"the table has no column {column.name}", "add nested columns by an engine")
            fields.append(NestedField(number, column.name, column.field_type, required=False))
    return Schema(*fields, *further)


def _cast(rows: pa.Table, schema: Schema, location: str) -> pa.Table:
    plain_columns = schema_to_pyarrow(Schema(*without_variants(schema.fields)))
    try:
        casted = rows.select(plain_columns.names).cast(plain_columns)
        for place, field in enumerate(schema.fields):
            if is_variant(field.field_type):
                column = pa.field(field.name, VARIANT_ARROW, metadata={FIELD_ID: str(field.field_id)})
                casted = casted.add_column(place, column, _variants(rows.column(field.name)))
        return casted
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise SchemaMismatch(
            f"the rows do not fit the table in {location}: {error}", "give them the table's types"
        ) from error


def _variants(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of variants, or of documents as JSON texts, as variants. Raises ValueError for a document that a variant
    does not hold exactly."""
    if pa.types.is_struct(column.type):
        return pa.chunked_array([whole_variants(chunk) for chunk in column.chunks], VARIANT_ARROW)
    parsed = parse_column(column.cast(pa.string()), ColumnType(Kind.VARIANT))
    if parsed.raw is not None:
        unheld = parsed.raw.drop_null()[0].as_py()
        raise ValueError(
            f"no variant holds {unheld[:_SHOWN]!r} exactly: numbers have up to 38 digits, and no key repeats"
        )
    return parsed.values


def _divided(rows: pa.Table, schema: Schema, columns: Sequence[PartitionColumn], location: str) -> Iterator[pa.Table]:
    """The rows of each partition, in their order. Nothing without rows."""
    if not columns or not rows.num_rows:
        if rows.num_rows:
            yield rows
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        try:
            column_codes = _partition_codes(rows.column(schema.find_column_name(column.source_id) or ""), column)
        except PartitionOutOfRange as error:
            raise FileRefused(f"the rows do not fit the table in {location}: {error}", error.remedy) from None
        # Each pair of codes becomes one, of those that occur.
        _, codes = np.unique(codes * (int(column_codes.max()) + 1) + column_codes, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    limits = np.flatnonzero(np.diff(codes[order])) + 1
    for places in np.split(order, limits):
        yield rows.take(pa.array(places))


def _partition_codes(values: pa.ChunkedArray, column: PartitionColumn) -> Values:
    """A number for each row, equal for rows of one partition value."""
    encoded = plain(values.combine_chunks()).dictionary_encode(null_encoding="encode")
    function = column.function
    codes_by_key: dict[object, int] = {}
    by_value = [
        codes_by_key.setdefault(partition_key((None if value is None else function(value),)), len(codes_by_key))
        for value in plain_values(encoded.dictionary, column.source_type)
    ]
    indices = pc.cast(encoded.indices, pa.int64()).to_numpy(zero_copy_only=False)
    codes: Values = np.asarray(by_value, np.int64)[indices]
    return codes
