"""What a Parquet file's footer says, read once for each commit: columns, counts, bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    pyarrow_to_schema,
    visit_pyarrow,
)
from pyiceberg.io.pyarrow import _HasIds as HasFieldIds
from pyiceberg.types import NestedField

from mirror_pump.errors import FileDamaged, FileMissing
from mirror_pump.lake.format.bounds import ColumnStatistics, split_offsets
from mirror_pump.lake.format.columns import whole_variants
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.storage import StorageOptions, local_path, size_of
from mirror_pump.tables.metadata.variant_type import VariantType, is_variant
from mirror_pump.tables.table.table_errors import FileRefused, SchemaMismatch

_MAGIC = 4
_VARIANT = re.compile(r"^  \w+ group field_id=(\d+) .* \(Variant\(\d*\)\) \{$", re.MULTILINE)
_UNITS = {"us": 1, "ms": 1000, "s": 1_000_000}
"""Microseconds in the unit of a time in Parquet."""


@dataclass(frozen=True)
class FileColumn:
    """A top-level column of a file."""

    field: NestedField
    """Its Iceberg type; with field IDs of the file's own, if it has any."""
    statistics: ColumnStatistics | None
    """None for a column of a nested type. Times are in microseconds."""


@dataclass(frozen=True)
class FileFooter:
    """A Parquet file."""

    path: str
    """URI."""
    size_bytes: int
    rows: int
    has_ids: bool
    """Whether its columns have Iceberg's field IDs."""
    columns: tuple[FileColumn, ...]
    split_offsets: tuple[int, ...]
    """Byte offsets of the row groups."""


class FooterReader:
    """Reads footers. Files of one writer have the same columns, whose Iceberg types are found out once."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._fields: dict[bytes, tuple[bool, tuple[NestedField, ...]]] = {}

    def read(self, location: str) -> FileFooter:
        """Raises FileRefused for what is missing or no Parquet file, SchemaMismatch for columns that Iceberg does not
        know, and LakeError if the storage fails."""
        size = self._size(location)
        try:
            with open_parquet(location, self._storage) as file:
                footer, arrow, variants = file.metadata, file.schema_arrow, _annotated(file)
        except FileMissing:
            raise _missing(location) from None
        except FileDamaged as error:
            raise FileRefused(f"{location} is not a Parquet file: {error}", "write it anew, as Parquet") from error
        has_ids, fields = self._iceberg(arrow, variants, location)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        columns = []
        leaf = 0
        for field, arrow_field in zip(fields, arrow, strict=True):
            leaves = _leaves(arrow_field.type)
            statistics = None
            if is_variant(field.field_type):
                statistics = _of_variant(groups, leaf)
            elif field.field_type.is_primitive:
                statistics = _statistics(groups, leaf, arrow_field.type)
            columns.append(FileColumn(field, statistics))
            leaf += leaves
        return FileFooter(location, size, footer.num_rows, has_ids, tuple(columns), split_offsets(groups))

    def _size(self, location: str) -> int:
        path = local_path(location)
        if path is not None and path.is_dir():
            raise FileRefused(f"{location} is a directory", "name the Parquet files in it")
        size = size_of(location, self._storage)
        if size is None:
            raise _missing(location)
        if size <= 2 * _MAGIC:
            raise FileRefused(f"{location} has {size} bytes: it is not a Parquet file", "write it anew, as Parquet")
        return size

    def _iceberg(
        self, arrow: pa.Schema, variants: frozenset[int], location: str
    ) -> tuple[bool, tuple[NestedField, ...]]:
        """`variants`: field IDs of the columns that the file says are such."""
        key = arrow.serialize().to_pybytes() + repr(sorted(variants)).encode()
        ids_and_fields = self._fields.get(key)
        if ids_and_fields is None:
            try:
                schema_of_plain = pa.schema([_stand_in(column, variants) for column in arrow])
                has_ids = bool(visit_pyarrow(schema_of_plain, HasFieldIds()))
                schema = (
                    pyarrow_to_schema(schema_of_plain) if has_ids else _pyarrow_to_schema_without_ids(schema_of_plain)
                )
            except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
                raise SchemaMismatch(
                    f"{location} has a column of a type that Iceberg does not have: {error}",
                    "write it with a type of the table, such as timestamps of microseconds",
                ) from error
            fields = tuple(
                NestedField(field.field_id, field.name, VariantType(), required=field.required)
                if field.field_id in variants
                else field
                for field in schema.fields
            )
            ids_and_fields = self._fields[key] = has_ids, fields
        return ids_and_fields


def _annotated(file: pq.ParquetFile) -> frozenset[int]:
    """Field IDs of the top-level columns that are annotated as variants. pyarrow shows that in a schema's text only."""
    return frozenset(int(field_id) for field_id in _VARIANT.findall(str(file.schema)))


def _stand_in(column: pa.Field, variants: frozenset[int]) -> pa.Field:
    """A variant column as one of a type that pyiceberg knows; others as they are. Raises ForeignTable for a shredded
    variant."""
    if not column.metadata or int(column.metadata.get(FIELD_ID, -1)) not in variants:
        return column
    whole_variants(pa.nulls(0, column.type))
    return column.with_type(pa.binary())


def _of_variant(groups: Sequence[pq.RowGroupMetaData], leaf: int) -> ColumnStatistics:
    """Of a variant whose first leaf column is `leaf`: each has as many NULLs as the variant."""
    metadata, value = (ColumnStatistics.of(groups, place) for place in (leaf, leaf + 1))
    return ColumnStatistics(metadata.size_bytes + value.size_bytes, metadata.nulls, (), ())


def _missing(location: str) -> FileRefused:
    return FileRefused(f"{location} does not exist", "write the file before it is committed")


def _leaves(kind: pa.DataType) -> int:
    """Number of Parquet columns of a type."""
    if isinstance(kind, pa.BaseExtensionType) or not kind.num_fields or pa.types.is_dictionary(kind):
        return 1
    return sum(_leaves(kind.field(place).type) for place in range(kind.num_fields))


def _statistics(groups: Sequence[pq.RowGroupMetaData], leaf: int, kind: pa.DataType) -> ColumnStatistics:
    statistics = ColumnStatistics.of(groups, leaf)
    if pa.types.is_unsigned_integer(kind):
        return replace(statistics, minima=(), maxima=())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        factor = _UNITS[kind.unit]
        minima, maxima = ([int(raw) * factor for raw in values] for values in (statistics.minima, statistics.maxima))
        return replace(statistics, minima=minima, maxima=maxima)
    return statistics
