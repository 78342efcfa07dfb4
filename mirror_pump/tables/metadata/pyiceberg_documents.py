"""Table metadata that pyiceberg made, as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata as PyicebergMetadata
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import UUIDType

from mirror_pump.errors import LakeError
from mirror_pump.lake.document.next_metadata import with_next_row_id
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.tables.metadata.variant_type import with_variant_schemas

_DEFAULTS = ("initial-default", "write-default")


def document_of(made: PyicebergMetadata) -> TableMetadata:
    """The document, with the next row ID of a table of format version 3."""
    # Its own model of version 3 refuses to be written, since pyiceberg 0.12 writes no files of that version.
    content = IcebergBaseModel.model_dump_json(made)
    return with_next_row_id(TableMetadata.from_json(content.encode()))


def parsed_document(metadata: TableMetadata) -> PyicebergMetadata:
    """A document as pyiceberg's metadata. Raises its ValueError and the like for what it does not know."""
    return TableMetadataUtil.parse_obj(with_variant_schemas(metadata.parsed()))


_FORMAT_VERSION = "format-version"
"""The property by which engines choose a new table's version. The table does not keep it."""


def new_metadata(
    location: str,
    schema: Schema | pa.Schema,
    partition_spec: PartitionSpec,
    properties: Mapping[str, str],
    format_version: int,
) -> TableMetadata:
    """A table without snapshots. A property `format-version` comes before `format_version`. Raises LakeError for what
    Iceberg does not have."""
    try:
        columns = _numbered(schema) if isinstance(schema, pa.Schema) else schema
        metadata = new_table_metadata(
            schema=columns,
            partition_spec=partition_spec,
            sort_order=UNSORTED_SORT_ORDER,
            location=location,
            properties={_FORMAT_VERSION: str(format_version), **_protected(columns), **properties},
        )
    except (TypeError, ValueError, ValidationError, UnsupportedPyArrowTypeException) as error:
        raise LakeError(f"no Iceberg table can have these columns: {error}", "choose other types") from error
    return new_document(metadata, columns)


def _numbered(schema: pa.Schema) -> Schema:
    """With the field IDs that the table will have: 1, 2 ... for the columns, which a partition spec names by them."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def _protected(schema: Schema) -> dict[str, str]:
    """Table properties that make other engines write neither bounds nor footer statistics for UUIDs
    (mirror_pump.lake.format.schema, engine_properties)."""
    properties = {}
    for column in schema.fields:
        if isinstance(column.field_type, UUIDType):
            properties[f"write.metadata.metrics.column.{column.name}"] = "counts"
            properties[f"write.parquet.stats-enabled.column.{column.name}"] = "false"
    return properties


def new_document(made: PyicebergMetadata, schema: Schema) -> TableMetadata:
    """The document of a new table, made for columns whose field IDs were assigned anew. Their defaults, which format
    version 3 has and pyiceberg drops then, are those of `schema`."""
    if made.format_version < VECTOR_VERSION:
        return document_of(made)
    document = document_of(made).parsed()
    columns = orjson.loads(schema.model_dump_json())
    return TableMetadata({**document, "schemas": [_with_defaults(stored, columns) for stored in document["schemas"]]})


def _with_defaults(kind: Any, source: Any) -> Any:
    """A type, or a schema, with the defaults of the fields of another one of the same shape."""
    if not isinstance(kind, Mapping):
        return kind
    result = dict(kind)
    if "fields" in kind:
        result["fields"] = [
            {
                **field,
                "type": _with_defaults(field["type"], like["type"]),
                **{key: like[key] for key in _DEFAULTS if key in like},
            }
            for field, like in zip(kind["fields"], source["fields"], strict=True)
        ]
    for part in ("element", "key", "value"):
        if part in kind:
            result[part] = _with_defaults(kind[part], source[part])
    return result
