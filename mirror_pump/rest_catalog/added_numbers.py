"""Numbers of the schemas, partition specs and sort orders that a client adds to a table.

A client numbers what it adds by the metadata that it knows. If another client came first, its numbers may be taken, and
not every such change has a requirement that says so: a replaced table has none on its sort order. Invariant: each
number of a table has one meaning, for ever. What the table has already keeps its number. A schema gets a free one,
since files name fields and not schemas. Files name their spec and their order by number, so a change that means
another one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePartitionSpecsUpdate,
    RemoveSchemasUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
)

from mirror_pump.rest_catalog.protocol import commit_failed


def numbered(table: str, updates: Iterable[TableUpdate], metadata: TableMetadata) -> Sequence[TableUpdate]:
    """The updates with numbers that are right upon this metadata, and without what the table has already. Raises
    ProtocolError (409) if that cannot be."""
    numbers = _Numbers(table, metadata)
    return [settled for update in updates if (settled := numbers.settle(update)) is not None]


class _Numbers:
    def __init__(self, table: str, metadata: TableMetadata) -> None:
        self._table = table
        self._schemas = {schema.schema_id: schema for schema in metadata.schemas}
        self._specs: dict[int, Sequence[object]] = {spec.spec_id: spec.fields for spec in metadata.partition_specs}
        self._orders: dict[int, Sequence[object]] = {order.order_id: order.fields for order in metadata.sort_orders}
        self._sent: dict[int, int] = {}
        """Numbers of the schemas that were added, by those that the client gave them."""
        self._last: dict[str, int] = {}
        """What -1 stands for."""

    def settle(self, update: TableUpdate) -> TableUpdate | None:
        """None for what is to be left out."""
        match update:
            case AddSchemaUpdate(schema_=schema):
                return self._add_schema(schema)
            case SetCurrentSchemaUpdate(schema_id=number):
                schema_id = self._last.get("schema", number) if number == -1 else self._sent.get(number, number)
                return update.model_copy(update={"schema_id": schema_id})
            case AddSnapshotUpdate(snapshot=snapshot) if snapshot.schema_id in self._sent:
                named = {"schema_id": self._sent[snapshot.schema_id]}
                return AddSnapshotUpdate(snapshot=snapshot.model_copy(update=named))
            case AddPartitionSpecUpdate(spec=spec):
                return update if self._is_new("partition spec", self._specs, spec.spec_id, spec.fields) else None
            case SetDefaultSpecUpdate(spec_id=-1):
                return update.model_copy(update={"spec_id": self._last.get("partition spec", -1)})
            case AddSortOrderUpdate(sort_order=order):
                return update if self._is_new("sort order", self._orders, order.order_id, order.fields) else None
            case SetDefaultSortOrderUpdate(sort_order_id=-1):
                return update.model_copy(update={"sort_order_id": self._last.get("sort order", -1)})
            case RemoveSchemasUpdate(schema_ids=gone):
                self._schemas = {number: schema for number, schema in self._schemas.items() if number not in gone}
            case RemovePartitionSpecsUpdate(spec_ids=gone):
                self._specs = {number: fields for number, fields in self._specs.items() if number not in gone}
        return update

    def _add_schema(self, schema: Schema) -> TableUpdate | None:
        same = next((number for number, other in self._schemas.items() if other == schema), None)
        taken = schema.schema_id in self._schemas
        number = same if same is not None else max(self._schemas) + 1 if taken else schema.schema_id
        self._last["schema"] = number
        if "schema_id" in schema.model_fields_set:
            self._sent[schema.schema_id] = number
        if same is not None:
            return None
        self._schemas[number] = schema
        return AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": number}))

    def _is_new(self, kind: str, assigned: dict[int, Sequence[object]], number: int, fields: Sequence[object]) -> bool:
        """False if the table has it. Raises ProtocolError if its number means other fields."""
        there = assigned.setdefault(number, fields)
        if list(there) != list(fields):
            raise commit_failed(f"{kind} {number} of {self._table} was added concurrently, with other fields")
        self._last[kind] = number
        return there is fields
