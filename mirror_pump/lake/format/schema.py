"""A table's columns in the lake: Iceberg field IDs, the Arrow schema for writing, and Iceberg's schema JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import ForeignTable
from mirror_pump.lake.format.initial_defaults import Default, default_of_text
from mirror_pump.model import MirroredTable

FIELD_ID = b"PARQUET:field_id"
"""Key in the metadata of an Arrow field that pyarrow maps to the Parquet field ID, and back."""

ELEMENT_IDS_FROM = 100_000
"""The element of a list column has the column's ID plus this. The ID is fixed for ever without a counter, and beyond
column IDs, since Postgres tables have at most 1,600 columns."""


@dataclass(frozen=True)
class LakeField:
    """One column of an Iceberg schema."""

    field_id: int
    name: str
    type: ColumnType
    required: bool
    element_id: int | None = None
    """Field ID of a LIST's element if another engine chose it; None for this project's rule (`list_element_id`)."""
    children: tuple[LakeField, ...] = ()
    """The fields of a STRUCT; key and value of a MAP."""
    initial_default: Default = None
    """The value of rows in files that lack the column, in Iceberg's form of single values as JSON (format version 3;
    mirror_pump.lake.format.initial_defaults). None: NULL."""

    @property
    def list_element_id(self) -> int:
        """Field ID of the element; only meaningful for a LIST."""
        return ELEMENT_IDS_FROM + self.field_id if self.element_id is None else self.element_id

    @property
    def leaf_id(self) -> int:
        """Field ID of the Parquet column that holds the values: the field's own, or that of a LIST's element."""
        return self.field_id if self.type.element is None else self.list_element_id

    @property
    def leaves(self) -> tuple[LakeField, ...]:
        """The fields whose values are the columns of a Parquet file, in their order."""
        return tuple(leaf for child in self.children for leaf in child.leaves) if self.children else (self,)

    @property
    def ids(self) -> tuple[int, ...]:
        """Field IDs of the field and of all in it."""
        return (self.field_id, self.leaf_id, *(field_id for child in self.children for field_id in child.ids))

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field, with field IDs, in the type that decoders produce."""
        if self.type.kind is Kind.STRUCT:
            struct = pa.struct([child.arrow for child in self.children])
            return pa.field(self.name, struct, nullable=not self.required, metadata=_id(self.field_id))
        if self.type.kind is Kind.MAP:
            key, value = self.children
            return pa.field(
                self.name, pa.map_(key.arrow, value.arrow), nullable=not self.required, metadata=_id(self.field_id)
            )
        arrow_type = self.type.arrow
        if self.type.element is not None:
            arrow_type = pa.list_(pa.field("element", arrow_type.value_type, metadata=_id(self.list_element_id)))
        return pa.field(self.name, arrow_type, nullable=not self.required, metadata=_id(self.field_id))


@dataclass(frozen=True)
class LakeSchema:
    """An Iceberg schema, limited to the types that the mirror uses. Frozen and picklable: it travels to tasks."""

    schema_id: int
    fields: tuple[LakeField, ...]
    key_ids: tuple[int, ...]
    """Iceberg's identifier-field-ids, in column order: the columns that an equality delete compares."""

    @classmethod
    def of_table(cls, table: MirroredTable, schema_id: int = 0) -> LakeSchema:
        """The lake schema of a registered table.

        Its columns have defaults only if the lake table's format version has them: a column gets one there alone.

        Only key columns are required: a value that the typed column cannot hold is NULL there, even if the column is
        NOT NULL in Postgres (docs/types.md).
        """
        return cls(
            schema_id,
            tuple(
                LakeField(
                    column.field_id,
                    column.name,
                    column.type.unmasked,
                    required=column.name in table.key,
                    initial_default=None if column.default is None else default_of_text(column.default, column.type),
                )
                for column in table.columns
            ),
            tuple(column.field_id for column in table.key_columns),
        )

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema with `PARQUET:field_id` metadata and the types of `ColumnType.arrow`."""
        return pa.schema([field.arrow for field in self.fields])

    @cached_property
    def key(self) -> LakeSchema:
        """The schema of equality-delete files: only the key columns."""
        fields = tuple(field for field in self.fields if field.field_id in self.key_ids)
        return LakeSchema(self.schema_id, fields, self.key_ids)

    @property
    def without_defaults(self) -> LakeSchema:
        """The schema for another table, whose files all have the columns; format version 2 has no defaults."""
        return replace(self, fields=tuple(replace(field, initial_default=None) for field in self.fields))

    def name_of(self, field_id: int) -> str:
        """The name of a column. Raises KeyError if the schema has no column of this ID."""
        for field in self.fields:
            if field.field_id == field_id:
                return field.name
        raise KeyError(f"no column has field ID {field_id}")

    @property
    def last_column_id(self) -> int:
        """The highest field ID in use, including elements (Iceberg's last-column-id)."""
        return max((field_id for field in self.fields for field_id in field.ids), default=0)

    @property
    def engine_properties(self) -> dict[str, str]:
        """Table properties that make other engines write neither bounds nor footer statistics for UUIDs. Iceberg's Java
        code compares UUIDs signed, Parquet unsigned, so it would skip files and row groups that hold matching rows."""
        uuids = [path for field in self.fields for path, leaf in _leaf_paths(field) if leaf.type.facts.is_unsigned]
        return {
            key: value
            for name in uuids
            for key, value in (
                (f"write.metadata.metrics.column.{name}", "counts"),
                (f"write.parquet.stats-enabled.column.{name}", "false"),
            )
        }

    def to_iceberg_json(self) -> dict[str, Any]:
        """The schema in the form of table metadata (Iceberg spec, appendix C)."""
        return {
            "type": "struct",
            "schema-id": self.schema_id,
            "identifier-field-ids": list(self.key_ids),
            "fields": list(map(_field_json, self.fields)),
        }

    @classmethod
    def from_iceberg_json(cls, document: Mapping[str, Any]) -> LakeSchema:
        """The inverse of `to_iceberg_json`, also for schemas that other engines wrote.

        Raises ForeignTable for a column type that the mirror does not write.
        """
        fields = tuple(_field_from_json(field) for field in document["fields"])
        return cls(document.get("schema-id", 0), fields, tuple(document.get("identifier-field-ids", ())))


def _id(field_id: int) -> dict[bytes, bytes]:
    return {FIELD_ID: str(field_id).encode()}


def _scalar_name(column_type: ColumnType) -> str:
    """Iceberg's name of a primitive type. The spec writes `decimal(P, S)` with a space; readers
    accept both."""
    if column_type.precision:
        return f"decimal({column_type.precision}, {column_type.scale})"
    return column_type.kind.value


def _leaf_paths(field: LakeField) -> list[tuple[str, LakeField]]:
    """The leaves, with their names as engines write them."""
    if not field.children:
        return [(field.name, field)]
    return [(f"{field.name}.{path}", leaf) for child in field.children for path, leaf in _leaf_paths(child)]


def _field_json(field: LakeField) -> dict[str, Any]:
    document = {"id": field.field_id, "name": field.name, "required": field.required, "type": _type_json(field)}
    if field.initial_default is not None:
        # What an engine writes for a column that its statement does not name.
        document |= {"initial-default": field.initial_default, "write-default": field.initial_default}
    return document


def _type_json(field: LakeField) -> str | dict[str, Any]:
    if field.type.kind is Kind.STRUCT:
        return {"type": "struct", "fields": list(map(_field_json, field.children))}
    if field.type.kind is Kind.MAP:
        key, value = field.children
        return {
            "type": "map",
            "key-id": key.field_id,
            "key": _type_json(key),
            "value-id": value.field_id,
            "value": _type_json(value),
            "value-required": value.required,
        }
    element = field.type.element
    if element is None:
        return _scalar_name(field.type)
    return {
        "type": "list",
        "element-id": field.list_element_id,
        "element": _scalar_name(element),
        "element-required": False,
    }


def _field_from_json(document: Mapping[str, Any]) -> LakeField:
    described = document["type"]
    element_id = None
    children: tuple[LakeField, ...] = ()
    try:
        if isinstance(described, str):
            column_type = ColumnType.parse(described)
        elif described["type"] == "list" and isinstance(described["element"], str):
            column_type = ColumnType(Kind.LIST, element=ColumnType.parse(described["element"]))
            if described["element-id"] != ELEMENT_IDS_FROM + document["id"]:
                element_id = described["element-id"]
        elif described["type"] == "struct" and described["fields"]:
            column_type = ColumnType(Kind.STRUCT)
            children = tuple(map(_field_from_json, described["fields"]))
        elif described["type"] == "map" and "key" in described:
            column_type = ColumnType(Kind.MAP)
            sides = (("key", True), ("value", described["value-required"]))
            children = tuple(
                _field_from_json(
                    {"id": described[f"{side}-id"], "name": side, "type": described[side], "required": required}
                )
                for side, required in sides
            )
        else:
            raise ValueError(described["type"])  # noqa: TRY301 - one place turns every unknown type into an error
        inner = [child.type for child in children] if column_type.element is None else [column_type.element]
        if any(part.is_document for part in inner):
            raise ValueError("a variant in another type")  # noqa: TRY301 - as above
    except ValueError as error:
        raise ForeignTable(
            f"column {document['name']!r} of the Iceberg table has the type {described!r}, unknown to the mirror",
            "drop the column with the engine that added it or, if the table has failed, unregister and register it;"
            " the columns of a mirrored table may only come from Postgres",
        ) from error
    default = document.get("initial-default")
    return LakeField(
        document["id"],
        document["name"],
        column_type,
        bool(document["required"]),
        element_id,
        children,
        default if isinstance(default, str | int | float) else None,
    )
