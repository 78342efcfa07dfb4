"""Table metadata that pyiceberg made, as a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata as PyicebergMetadata
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import IcebergBaseModel

from mirror_pump.lake.document.next_metadata import with_next_row_id
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import VECTOR_VERSION
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


def new_document(made: PyicebergMetadata, schema: Schema) -> TableMetadata:
    """The document of a new table, made for columns whose field IDs were assigned anew. Their defaults, which format
    version 3 has and pyiceberg drops then, are those of `schema`."""
    if made.format_version < VECTOR_VERSION:
        return document_of(made)
    document = document_of(made).parsed()
    columns = orjson.loads(schema.model_dump_json())
    return TableMetadata({**document, "schemas": [_with_defaults(own, columns) for own in document["schemas"]]})


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
