"""A table's next schema: which changes Iceberg allows, and the metadata document with the change.

Data files stay untouched. Readers find columns by field ID, so in a file from before a change, an added column reads as
NULL, a renamed one under its new name, and a widened one promoted (Iceberg spec, Schema Evolution and Column
Projection). This holds only as long as a field ID means the same column for ever: IDs are never reused, and types only
widen. Every snapshot names the schema that it was made under, so old snapshots read as before.

The type of a key column cannot change as long as older files remain: DuckDB 1.5 fails with an internal error when it
compares an equality delete of one width with rows of another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from decoders.columns import ColumnType
from mirror_pump.errors import LakeError
from mirror_pump.lake.document.next_metadata import with_schema
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.schema import LakeField, LakeSchema


class SchemaConflict(LakeError):
    """The lake table cannot take the columns, for instance because another engine added columns of its own."""


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of `old` read as `new` without a rewrite (Iceberg spec, v2 type promotion)."""
    if old == new or old.facts.widens_to is new.kind:
        return True
    if old.element is not None and new.element is not None:
        return widens(old.element, new.element)
    # Only decimals have a precision.
    return 0 < old.precision <= new.precision and old.scale == new.scale


def evolved(metadata: TableMetadata, schema: LakeSchema, *, replaced: bool) -> TableMetadata:
    """The metadata document with `schema` as the current schema. The schema ID is chosen here.

    `replaced` tells that the same commit removes all earlier files; then a column may become required. Raises
    SchemaConflict for a change that would make earlier files or snapshots unreadable.
    """
    schemas = metadata.readable_schemas
    current = next(
        (past_schema for past_schema in schemas if past_schema.schema_id == metadata.current_schema_id), None
    )
    if current is not None and _same(current, schema):
        return metadata
    _check(schemas, current, schema, replaced=replaced)
    used = next((past_schema.schema_id for past_schema in schemas if _same(past_schema, schema)), None)
    return with_schema(metadata, schema, used, current)


def _same(left: LakeSchema, right: LakeSchema) -> bool:
    return (left.fields, left.key_ids) == (right.fields, right.key_ids)


def _check(schemas: list[LakeSchema], current: LakeSchema | None, schema: LakeSchema, *, replaced: bool) -> None:
    """Raises SchemaConflict unless every field of `schema` may follow its predecessor."""
    current_fields = {field.field_id: field for field in current.fields} if current is not None else {}
    past_fields = {
        field.field_id: field for past_schema in schemas for top in past_schema.fields for field in _all_fields(top)
    }
    ids = [field.field_id for top in schema.fields for field in _all_fields(top)]
    if len(set(ids)) != len(ids) or len({field.name for field in schema.fields}) != len(schema.fields):
        raise _refused("it names a column or a field ID twice")
    if not set(schema.key_ids) <= {field.field_id for field in schema.fields if field.required}:
        raise _refused("each key column must exist and be required")
    _check_fields(schema.fields, current_fields, past_fields, schema.key_ids, replaced=replaced)


def _all_fields(field: LakeField) -> list[LakeField]:
    """The field, and all in it."""
    return [field, *(inner for child in field.children for inner in _all_fields(child))]


def _check_fields(
    fields: Sequence[LakeField],
    current_fields: Mapping[int, LakeField],
    past_fields: Mapping[int, LakeField],
    key_ids: Collection[int],
    *,
    replaced: bool,
) -> None:
    for field in fields:
        before = current_fields.get(field.field_id)
        if before is None:
            _check_new(field, past_fields.get(field.field_id), replaced=replaced)
        elif not widens(before.type, field.type) or before.list_element_id != field.list_element_id:
            raise _refused(f"column {field.name} cannot change from {before.type} to {field.type}")
        elif before.initial_default != field.initial_default:
            raise _refused(f"column {field.name} cannot get another initial default: older files lack it")
        elif before.type != field.type and field.field_id in key_ids and not replaced:
            raise _refused(
                f"key column {field.name} cannot change from {before.type} to {field.type} while rows and deletes of"
                " the old type remain"
            )
        elif field.required and not before.required and not replaced:
            raise _refused(f"column {field.name} cannot become required: older rows may lack it")
        elif field.children:
            inner = {child.field_id: child for child in before.children}
            _check_fields(field.children, inner, past_fields, (), replaced=replaced)


def _check_new(field: LakeField, past_field: LakeField | None, *, replaced: bool) -> None:
    if past_field is not None:
        raise _refused(
            f"field ID {field.field_id} of column {field.name} belonged to column {past_field.name}, and IDs are never"
            " reused"
        )
    if field.required and not replaced:
        raise _refused(f"column {field.name} is new and cannot be required: older rows lack it")


def _refused(why: str) -> SchemaConflict:
    return SchemaConflict(
        f"the lake table's schema cannot change this way: {why}",
        "unregister and register the table; no other engine may alter its lake table",
    )
