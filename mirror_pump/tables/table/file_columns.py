"""Fits a file's columns to a table's: which column of the table each is, and which the table has to gain.

By field ID if the file has any, as Iceberg's own writers give them, else by name. A file may lack optional columns, and
may have narrower types that Iceberg promotes. It may add optional columns. Everything else is refused: a reader would
fail, or see other values than the writer meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from mirror_pump.lake.format.row_lineage import LAST_UPDATED, LAST_UPDATED_FIELD, ROW_ID, ROW_ID_FIELD
from mirror_pump.tables.metadata.variant_type import is_variant
from mirror_pump.tables.table.file_footers import FileColumn, FileFooter
from mirror_pump.tables.table.table_errors import SchemaMismatch

_LINEAGE_FIELDS = {ROW_ID: ROW_ID_FIELD, LAST_UPDATED: LAST_UPDATED_FIELD}
_REMEDY = "write the file with the table's columns; new columns have to be nullable"


@dataclass(frozen=True)
class TableColumns:
    """A table's columns, as files are fitted to them."""

    schema: Schema
    former_names: Mapping[int, frozenset[str]]
    """All names that a top-level column has had, by field ID, those of dropped columns included."""
    mapped_names: Mapping[str, int]
    """Field IDs of top-level columns by the names that files without IDs may use."""
    last_id: int
    """The highest field ID that was ever used."""
    has_lineage: bool = False
    """Whether its rows have IDs: files may have those of rows that come from other files."""


@dataclass(frozen=True)
class FittedFile:
    """A file's columns as those of the table."""

    columns: Mapping[int, FileColumn]
    """By the table's field IDs."""
    added: tuple[NestedField, ...]
    """Columns that the table gains, with IDs of the file's own or new ones."""


def fit(file: FileFooter, table: TableColumns) -> FittedFile:
    """Raises SchemaMismatch, which names the file and the column."""
    columns: dict[int, FileColumn] = {}
    added: list[NestedField] = []
    last_id = table.last_id
    for column in file.columns:
        field = column.field
        if table.has_lineage and field.name in _LINEAGE_FIELDS and not _is_taken(field.name, table):
            _require_lineage(file, field)
            continue
        table_field = _of_table(file, field, table)
        if table_field is None:
            added.append(_new(file, field, table, last_id + 1))
            last_id = max(last_id, _highest(added[-1]))
            table_field = added[-1]
        elif (reason := _difference(field.field_type, table_field.field_type, by_id=file.has_ids)) is not None:
            raise SchemaMismatch(f"{file.path}: column {field.name}: {reason}", _REMEDY)
        elif table_field.required and not _has_values(column, field):
            raise SchemaMismatch(f"{file.path}: column {field.name} may be null, and the table requires it", _REMEDY)
        if table_field.field_id in columns:
            raise SchemaMismatch(f"{file.path} has column {table_field.name} twice", _REMEDY)
        columns[table_field.field_id] = column
    missing = [field.name for field in table.schema.fields if field.required and field.field_id not in columns]
    if missing:
        raise SchemaMismatch(f"{file.path} lacks the required column {', '.join(missing)}", _REMEDY)
    return FittedFile(columns, tuple(added))


def _is_taken(name: str, table: TableColumns) -> bool:
    return any(table_field.name == name for table_field in table.schema.fields)


def _require_lineage(file: FileFooter, field: NestedField) -> None:
    field_id = _LINEAGE_FIELDS[field.name]
    if not file.has_ids or field.field_id != field_id or not isinstance(field.field_type, LongType):
        raise SchemaMismatch(
            f"{file.path}: column {field.name} is not the one of row lineage",
            f"write it as long with field ID {field_id}, or leave it out: then its rows are new ones",
        )


def _of_table(file: FileFooter, field: NestedField, table: TableColumns) -> NestedField | None:
    """The table's column; None for one that the table does not have."""
    if not file.has_ids:
        field_id = table.mapped_names.get(field.name)
        if field_id is None:
            return next((table_field for table_field in table.schema.fields if table_field.name == field.name), None)
        return next((table_field for table_field in table.schema.fields if table_field.field_id == field_id), None)
    names = table.former_names.get(field.field_id, frozenset())
    if names and field.name not in names:
        raise SchemaMismatch(
            f"{file.path}: column {field.name} has field ID {field.field_id}, which is that of {min(names)}",
            "write the file for this table: its field IDs are those of another one",
        )
    return next((table_field for table_field in table.schema.fields if table_field.field_id == field.field_id), None)


def _new(file: FileFooter, field: NestedField, table: TableColumns, next_id: int) -> NestedField:
    """A column that the table gains. Raises SchemaMismatch if it cannot."""
    if field.required:
        raise SchemaMismatch(f"{file.path}: the table has no column {field.name}, and it is not nullable", _REMEDY)
    if is_variant(field.field_type) and not table.has_lineage:
        raise SchemaMismatch(
            f"{file.path}: column {field.name} is a variant, which Iceberg's format version 3 has",
            "upgrade the table first (Table.upgrade)",
        )
    if any(table_field.name.lower() == field.name.lower() for table_field in table.schema.fields):
        raise SchemaMismatch(f"{file.path}: column {field.name} has another field ID than the table's", _REMEDY)
    if not file.has_ids:
        if not field.field_type.is_primitive:
            raise SchemaMismatch(
                f"{file.path}: the table has no column {field.name}", "add columns of nested types by an engine"
            )
        return NestedField(next_id, field.name, field.field_type, required=False)
    if field.field_id <= table.last_id:
        raise SchemaMismatch(
            f"{file.path}: the table has no column {field.name}, and its field ID {field.field_id} was in use before",
            f"give new columns field IDs from {table.last_id + 1} on",
        )
    return field


def _highest(field: NestedField) -> int:
    """The highest field ID of a column, those of its elements included."""
    return max([field.field_id, *Schema(field)._lazy_id_to_field])


def _has_values(column: FileColumn, field: NestedField) -> bool:
    """Whether no value of the column is NULL, as far as its footer shows."""
    return field.required or (column.statistics is not None and column.statistics.nulls == 0)


def _difference(file: IcebergType, table: IcebergType, *, by_id: bool) -> str | None:
    """Why values of one type cannot be read as another; None if they can."""
    match file, table:
        case StructType(), StructType():
            return _struct_difference(file, table, by_id=by_id)
        case ListType(), ListType():
            return _difference(file.element_type, table.element_type, by_id=by_id)
        case MapType(), MapType():
            return _difference(file.key_type, table.key_type, by_id=by_id) or _difference(
                file.value_type, table.value_type, by_id=by_id
            )
    return None if _promotes(file, table) else f"it is {file}, and the table's is {table}"


def _promotes(file: IcebergType, table: IcebergType) -> bool:
    """Whether every engine reads values of one type as the other (Iceberg spec, v2 type promotion)."""
    match file, table:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return file.scale == table.scale and file.precision <= table.precision
    return file == table


def _struct_difference(file: StructType, table: StructType, *, by_id: bool) -> str | None:
    keys = {(field.field_id if by_id else field.name): field for field in file.fields}
    for field in table.fields:
        file_field = keys.pop(field.field_id if by_id else field.name, None)
        if file_field is None:
            if field.required:
                return f"it lacks the required field {field.name}"
        elif (reason := _difference(file_field.field_type, field.field_type, by_id=by_id)) is not None:
            return f"field {field.name}: {reason}"
    return f"the table's lacks the field {next(iter(keys.values())).name}" if keys else None
