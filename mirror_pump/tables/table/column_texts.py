"""Columns and partition fields as people write them: `id long not null`, `day(at)`, `bucket[16](id)`, `region`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, parse_transform

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.partition_specs import LAST_PARTITION_ID
from mirror_pump.tables.metadata.variant_type import with_variant_types

_COLUMN = re.compile(r"(\S+)\s+(.+?)(\s+not\s+null)?", re.IGNORECASE)
_PARTITION = re.compile(r"([a-z]+(?:\[\d+\])?)\((.+)\)|([^()]+)")
_SUFFIXES = {"truncate": "trunc"}
"""Of the names that Iceberg gives partition fields, where they are not the transform's name."""


def schema_of(columns: Sequence[str]) -> Schema:
    """Columns with field IDs from 1. Raises UsageError."""
    fields: list[dict[str, Any]] = []
    for number, text in enumerate(columns, 1):
        match = _COLUMN.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is not a column", "write it as in 'id long not null'")
        fields.append({"id": number, "name": match[1], "type": match[2].lower(), "required": match[3] is not None})
    try:
        return Schema.model_validate(with_variant_types({"type": "struct", "fields": fields}))
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise UsageError(
            f"no table can have the columns {', '.join(columns)}: {reason}",
            "use Iceberg's primitive types, such as int, long, double, decimal(9,2), date, timestamptz, string, binary",
        ) from None


def partition_spec_of(fields: Sequence[str], columns: Sequence[str]) -> PartitionSpec:
    """The spec of a table whose top-level columns have these names, and the field IDs from 1. Raises UsageError."""
    if not fields:
        return UNPARTITIONED_PARTITION_SPEC
    return PartitionSpec(*(_field(text, number, columns) for number, text in enumerate(fields)))


def _field(text: str, number: int, columns: Sequence[str]) -> PartitionField:
    match = _PARTITION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a partition field", "write it as in region, day(at) or bucket[16](id)")
    column = (match[2] or match[3]).strip()
    if column not in columns:
        raise UsageError(f"{text!r}: there is no column {column}", f"the columns are {', '.join(columns)}")
    transform = _transform(match[1] or "identity", text)
    kind = (match[1] or "").partition("[")[0]
    name = f"{column}_{_SUFFIXES.get(kind, kind)}" if kind else column
    return PartitionField(columns.index(column) + 1, LAST_PARTITION_ID + 1 + number, transform, name)


def _transform(name: str, text: str) -> Transform[Any, Any]:
    try:
        transform = parse_transform(name)
    except (ValueError, ValidationError):
        transform = None
    if transform is None or type(transform).__name__ in ("UnknownTransform", "VoidTransform"):
        raise UsageError(
            f"{text!r}: {name} is not a transform", "there are year, month, day, hour, bucket[N] and truncate[N]"
        )
    return transform
