"""The metadata of a new table, from columns and a partition spec of pyiceberg's or Arrow's."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import UUIDType

from mirror_pump.errors import LakeError
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.tables.metadata.pyiceberg_documents import new_document

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
