"""Iceberg's type `variant` as one of pyiceberg's types, which lack it: schemas that have such columns are parsed here.

The type is put into a parsed document before pyiceberg validates it, which takes types as they are and texts by a list
of its own. What pyiceberg prints of it is `variant` again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import orjson
from pydantic import Field
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import NestedField, PrimitiveType

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.format.versions import VECTOR_VERSION

_VARIANT: Final = "variant"


class VariantType(PrimitiveType):
    """A document of any shape, as Parquet's variants encode it."""

    root: Literal["variant"] = Field(default=_VARIANT)

    def minimum_format_version(self) -> Literal[3]:
        """The first format version that has the type."""
        return VECTOR_VERSION


def with_variant_types(kind: Any) -> Any:
    """A type, or a schema, of a JSON document with the type in place of its name."""
    if kind == _VARIANT:
        return VariantType()
    if not isinstance(kind, Mapping):
        return kind
    result = dict(kind)
    if isinstance(kind.get("fields"), list):
        result["fields"] = [
            {**field, "type": with_variant_types(field["type"])}
            if isinstance(field, Mapping) and "type" in field
            else field
            for field in kind["fields"]
        ]
    for part in ("element", "key", "value"):
        if part in kind:
            result[part] = with_variant_types(kind[part])
    return result


def with_variant_schemas(document: Mapping[str, Any]) -> dict[str, Any]:
    """Table metadata, or an update of it, with the type in its schemas."""
    result = dict(document)
    if "schema" in document:
        result["schema"] = with_variant_types(document["schema"])
    if isinstance(document.get("schemas"), list):
        result["schemas"] = [with_variant_types(schema) for schema in document["schemas"]]
    return result


def schema_of(document: bytes) -> Schema:
    """A schema from its JSON. Raises pydantic's ValueError or TypeError."""
    return Schema.model_validate(with_variant_types(orjson.loads(document)))


def is_variant(kind: Any) -> bool:
    """Whether a type is variant."""
    return isinstance(kind, VariantType)


def without_variants(fields: Iterable[NestedField]) -> list[NestedField]:
    """The columns of other types."""
    return [field for field in fields if not is_variant(field.field_type)]


def variants_of(schema: Schema) -> frozenset[int]:
    """Field IDs of the columns that are variants. Raises ForeignTable for one within a column of another type."""
    for field in schema.fields:
        kind = type(field.field_type).__name__.removesuffix("Type").lower()
        if not field.field_type.is_primitive and any(is_variant(inner.field_type) for inner in _fields(field)):
            raise ForeignTable(
                f"column {field.name} has variants within a {kind}",
                "read the table with an engine that knows them",
            )
    return frozenset(field.field_id for field in schema.fields if is_variant(field.field_type))


def _fields(field: NestedField) -> Iterable[NestedField]:
    """The field and all in it."""
    return index_by_id(Schema(field)).values()
