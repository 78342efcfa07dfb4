"""What a Parquet file's footer says, read once for each commit: columns, counts, bounds."""

from __future__ import annotations

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
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.storage import StorageOptions, local_path, size_of
from mirror_pump.tables.table.table_errors import FileRefused, SchemaMismatch

_MAGIC = 4
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
                footer, arrow = file.metadata, file.schema_arrow
        except FileMissing:
            raise _missing(location) from None
        except FileDamaged as error:
            raise FileRefused(f"{location} is not a Parquet file: {error}", "write it anew, as Parquet") from error
        has_ids, fields = self._iceberg(arrow, location)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        columns = []
        leaf = 0
        for field, arrow_field in zip(fields, arrow, strict=True):
            leaves = _leaves(arrow_field.type)
            statistics = _statistics(groups, leaf, arrow_field.type) if field.field_type.is_primitive else None
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

    def _iceberg(self, arrow: pa.Schema, location: str) -> tuple[bool, tuple[NestedField, ...]]:
        key = arrow.serialize().to_pybytes()
        ids_and_fields = self._fields.get(key)
        if ids_and_fields is None:
            try:
                has_ids = bool(visit_pyarrow(arrow, HasFieldIds()))
                schema = pyarrow_to_schema(arrow) if has_ids else _pyarrow_to_schema_without_ids(arrow)
            except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
                raise SchemaMismatch(
                    f"{location} has a column of a type that Iceberg does not have: {error}",
                    "write it with a type of the table, such as timestamps of microseconds",
                ) from error
            ids_and_fields = self._fields[key] = has_ids, tuple(schema.fields)
        return ids_and_fields


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
