"""Data files as a table's manifests describe them: checked against its columns, with counts, bounds and partitions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import orjson
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema, parse_mapping_from_json
from pyiceberg.types import IcebergType, NestedField

from decoders.columns import ColumnType
from mirror_pump.lake.document.next_metadata import with_columns
from mirror_pump.lake.document.table_metadata import NAME_MAPPING, TableMetadata
from mirror_pump.lake.format.bounds import ColumnStatistics
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.tables.metadata.table_view import parsed_schema
from mirror_pump.tables.table.file_columns import FittedFile, TableColumns, fit
from mirror_pump.tables.table.file_footers import FileFooter, FooterReader
from mirror_pump.tables.table.file_names import is_within
from mirror_pump.tables.table.partition_values import partition_columns, partition_of
from mirror_pump.tables.table.table_errors import FileRefused, SchemaMismatch

_FLOATING = re.compile("float|double|uuid|fixed")
"""Types without bounds: footers leave NaN out, which some engines order last; UUIDs are ordered in two ways."""


@dataclass(frozen=True)
class DescribedFiles:
    """Files to add, and the table metadata with the columns that they bring."""

    files: tuple[WrittenFile, ...]
    metadata: TableMetadata


@dataclass
class FileDescriber:
    """Describes the files of one commit. Reads each footer once, however often the commit is tried."""

    storage: StorageOptions
    _footers: dict[str, FileFooter] = field(default_factory=dict)

    def read(self, paths: Iterable[str], reader: FooterReader) -> None:
        """Raises FileRefused for a file that is named twice, missing or not Parquet, and LakeError."""
        for path in paths:
            if path in self._footers:
                raise FileRefused(f"{path} is named twice", "name each file once")
            self._footers[path] = reader.read(path)

    def describe(self, metadata: TableMetadata) -> DescribedFiles:
        """The files, as files of the table with this metadata. Raises FileRefused and its SchemaMismatch, and
        LakeError."""
        if not self._footers:
            return DescribedFiles((), metadata)
        schema = current_schema(metadata)
        files = []
        for footer in self._footers.values():
            _require_inside(footer.path, metadata)
            fitted = fit(footer, _columns(metadata, schema))
            needs_mapping = not footer.has_ids and NAME_MAPPING not in metadata.properties
            if fitted.added or needs_mapping:
                metadata = _with_columns(metadata, schema, fitted.added, footer)
                schema = current_schema(metadata)
            columns = partition_columns(metadata.default_spec, schema)
            written = _written(footer, fitted, schema)
            files.append(replace(written, partition=partition_of(footer, fitted, columns, self.storage)))
        return DescribedFiles(tuple(files), metadata)


def current_schema(metadata: TableMetadata) -> Schema:
    """The table's current columns."""
    return _schema(orjson.dumps(metadata.schema_document(metadata.current_schema_id)))


@lru_cache(maxsize=64)
def _schema(document: bytes) -> Schema:
    return parsed_schema(document)


def file_location(path: str, metadata: TableMetadata) -> str:
    """A file as the table names it: if the table's location is a URI, a local path becomes one too."""
    local = local_path(path) if "://" in path or path.startswith("file:") else Path(path)
    if local is None:
        return path
    plain = os.path.abspath(local)  # noqa: PTH100 - resolve() would follow links, which readers of the table do too
    return f"file://{plain}" if metadata.location.startswith("file:") else plain


def _require_inside(path: str, metadata: TableMetadata) -> None:
    """Raises FileRefused for a file outside the table: no program that keeps the table's files knows of it."""
    roots = [metadata.location, metadata.properties.get("write.data.path")]
    if not any(root and is_within(path, root) for root in roots):
        raise FileRefused(f"{path} is outside the table in {metadata.location}", "put it into the table's directory")


def _columns(metadata: TableMetadata, schema: Schema) -> TableColumns:
    names: dict[int, set[str]] = {}
    for document in metadata.schema_documents:
        for column in document["fields"]:
            names.setdefault(int(column["id"]), set()).add(str(column["name"]))
    mapped: dict[str, int] = {}
    text = metadata.properties.get(NAME_MAPPING)
    if text is not None:
        for entry in parse_mapping_from_json(text).root:
            if entry.field_id is not None:
                mapped |= dict.fromkeys(entry.names, entry.field_id)
    former_names = {field_id: frozenset(column_names) for field_id, column_names in names.items()}
    has_lineage = metadata.format_version >= VECTOR_VERSION
    return TableColumns(schema, former_names, mapped, metadata.last_column_id, has_lineage)


def _with_columns(
    metadata: TableMetadata, schema: Schema, added: Sequence[NestedField], file: FileFooter
) -> TableMetadata:
    """The metadata with further columns, and with a name mapping if files without field IDs need one."""
    taken = {str(field["name"]).lower() for spec in metadata.partition_specs for field in spec.fields}
    for column in added:
        if column.name.lower() in taken:
            raise SchemaMismatch(
                f"{file.path}: column {column.name} has the name of a partition field of the table", "rename it"
            )
    # Without documentation, defaults and the like, which the file knows nothing of.
    fields = [NestedField(column.field_id, column.name, column.field_type, required=False) for column in added]
    extended = Schema(*schema.fields, *fields, identifier_field_ids=schema.identifier_field_ids)
    mapped = not file.has_ids or NAME_MAPPING in metadata.properties
    mapping = _mapping(metadata, extended, fields) if mapped else None
    return with_columns(metadata, orjson.loads(extended.model_dump_json()), extended.highest_field_id, mapping)


def _mapping(metadata: TableMetadata, schema: Schema, added: Sequence[NestedField]) -> str:
    """The name mapping with the added columns; a new one of all columns if there is none."""
    text = metadata.properties.get(NAME_MAPPING)
    if text is None:
        return create_mapping_from_schema(schema).model_dump_json()
    further = create_mapping_from_schema(Schema(*added)).root
    return orjson.dumps([*orjson.loads(text), *(orjson.loads(entry.model_dump_json()) for entry in further)]).decode()


def _written(file: FileFooter, fitted: FittedFile, schema: Schema) -> WrittenFile:
    types = {column.field_id: column.field_type for column in schema.fields}
    columns = {
        field_id: column.statistics
        for field_id, column in sorted(fitted.columns.items())
        if column.statistics is not None
    }
    bounds = {field_id: _bounds(statistics, types[field_id]) for field_id, statistics in columns.items()}
    return WrittenFile(
        content=FileContent.DATA,
        path=file.path,
        record_count=file.rows,
        size_bytes=file.size_bytes,
        column_sizes={field_id: statistics.size_bytes for field_id, statistics in columns.items()},
        value_counts=dict.fromkeys(columns, file.rows),
        null_counts={
            field_id: statistics.nulls for field_id, statistics in columns.items() if statistics.nulls is not None
        },
        lower_bounds={field_id: low for field_id, (low, _) in bounds.items() if low is not None},
        upper_bounds={field_id: high for field_id, (_, high) in bounds.items() if high is not None},
        split_offsets=file.split_offsets,
    )


def _bounds(statistics: ColumnStatistics, kind: IcebergType) -> tuple[bytes | None, bytes | None]:
    if _FLOATING.match(str(kind)):
        return None, None
    try:
        return statistics.bounds(ColumnType.parse(str(kind)))
    except (ValueError, KeyError):
        # A type without bounds, or text that was shortened within a character.
        return None, None
