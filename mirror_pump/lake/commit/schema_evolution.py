"""A table's next schema: what Iceberg allows to change, and the metadata document with the change in it.

Data files are not touched: readers find columns by field ID, so a file from before a change reads as NULL where it has
no column of an ID, under the new name where a column was renamed, and promoted where a type was widened (Iceberg spec,
Schema Evolution and Column Projection). That holds only as long as an ID means one column for ever: it never comes
back, and its type only widens. Every snapshot names the schema it was made under, so old ones read as they did.

A key column's type stays as long as files of before do: DuckDB 1.5 ends with an internal error where it has to compare
an equality delete of one width with rows of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import LakeError
from mirror_pump.lake.format.schema import LakeField, LakeSchema


class SchemaConflict(LakeError):
    """The lake table cannot take the columns: another engine gave it some of its own, for instance."""


_WIDER = {(Kind.INT, Kind.LONG), (Kind.FLOAT, Kind.DOUBLE)}


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of `old` read as `new` without a rewrite (Iceberg spec, v2 type promotion)."""
    if old == new or (old.kind, new.kind) in _WIDER:
        return True
    if old.kind is Kind.LIST and new.kind is Kind.LIST:
        assert old.element is not None
        assert new.element is not None
        return widens(old.element, new.element)
    decimals = old.kind is new.kind is Kind.DECIMAL
    return decimals and old.scale == new.scale and old.precision <= new.precision


def with_schema(metadata: Mapping[str, Any], schema: LakeSchema, *, replaced: bool) -> dict[str, Any]:
    """The document after `schema` became the table's current one; its own schema ID is the table's to choose.

    `replaced` says that the same commit removes every file from before: then a column may become required. Raises
    SchemaConflict for a change that would make files or snapshots from before unreadable.
    """
    known = [LakeSchema.from_iceberg_json(one) for one in metadata["schemas"] if _ours(one)]
    current_id = metadata["current-schema-id"]
    current = next((one for one in known if one.schema_id == current_id), None)
    if current is not None and _same(current, schema):
        return dict(metadata)
    _check(known, current, schema, replaced=replaced)
    used = next((one.schema_id for one in known if _same(one, schema)), None)
    result = {
        **metadata,
        "last-column-id": max(int(metadata["last-column-id"]), schema.last_column_id),
        "properties": properties_after(metadata["properties"], current, schema),
    }
    if used is None:
        used = max(one["schema-id"] for one in metadata["schemas"]) + 1
        result["schemas"] = [*metadata["schemas"], replace(schema, schema_id=used).to_iceberg_json()]
    result["current-schema-id"] = used
    return result


def properties_after(properties: Mapping[str, str], current: LakeSchema | None, schema: LakeSchema) -> dict[str, str]:
    """After `schema` took the place of `current` (None: one that the mirror cannot read): with those that name columns
    as they are now. Iceberg takes no properties any more where one names none."""
    former = {} if current is None else current.engine_properties
    return {key: value for key, value in properties.items() if key not in former} | schema.engine_properties


def _ours(document: Mapping[str, Any]) -> bool:
    """Whether the mirror can read the schema: another engine may have added, and dropped, a column of another type."""
    try:
        LakeSchema.from_iceberg_json(document)
    except LakeError:
        return False
    return True


def _same(one: LakeSchema, other: LakeSchema) -> bool:
    return (one.fields, one.key_ids) == (other.fields, other.key_ids)


def _check(known: list[LakeSchema], current: LakeSchema | None, schema: LakeSchema, *, replaced: bool) -> None:
    """Raises SchemaConflict unless every field of `schema` may follow what was before."""
    present = {field.field_id: field for field in current.fields} if current is not None else {}
    former = {field.field_id: field for one in known for field in one.fields}
    ids = [field.field_id for field in schema.fields]
    if len(set(ids)) != len(ids) or len({field.name for field in schema.fields}) != len(ids):
        raise _refused("it names a column, or a field ID, twice")
    if not set(schema.key_ids) <= {field.field_id for field in schema.fields if field.required}:
        raise _refused("a key column must be there, and required")
    for field in schema.fields:
        before = present.get(field.field_id)
        if before is None:
            _check_new(field, former.get(field.field_id), replaced=replaced)
        elif not widens(before.type, field.type) or before.list_element_id != field.list_element_id:
            raise _refused(f"column {field.name} cannot become {field.type} from {before.type}")
        elif before.type != field.type and field.field_id in schema.key_ids and not replaced:
            raise _refused(
                f"key column {field.name} cannot become {field.type} beside rows and deletes of {before.type}"
            )
        elif field.required and not before.required and not replaced:
            raise _refused(f"column {field.name} cannot become required: rows from before may lack it")


def _check_new(field: LakeField, former: LakeField | None, *, replaced: bool) -> None:
    if former is not None:
        raise _refused(
            f"field ID {field.field_id} of column {field.name} was column {former.name}'s, and IDs never return"
        )
    if field.required and not replaced:
        raise _refused(f"column {field.name} is new and cannot be required: rows from before lack it")


def _refused(why: str) -> SchemaConflict:
    return SchemaConflict(
        f"the lake table's schema cannot change like this: {why}",
        "unregister and register the table; no other engine may alter its lake table",
    )
