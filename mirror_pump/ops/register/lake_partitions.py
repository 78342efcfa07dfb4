"""How the lake table of a plain mirrored table is partitioned, checked against its columns."""

from __future__ import annotations

from collections.abc import Sequence

from decoders.columns import Kind
from mirror_pump.errors import TableError
from mirror_pump.lake.format.partitioning import applies
from mirror_pump.model import Column, LakePartitioning, PartitionedColumn, SortedColumn, TableName
from mirror_pump.source.relations.partition_choices import PartitionChoice, SortChoice

_EXAMPLES = ("identity", "year", "month", "day", "hour", "bucket[16]", "truncate[10]")


def partitioning_by(
    relation: TableName, columns: Sequence[Column], choices: Sequence[PartitionChoice], order: Sequence[SortChoice]
) -> LakePartitioning | None:
    """The lake table's partitioning; None without choices. `columns` are those of the lake table. Raises TableError for
    a column that it does not have, or whose type does not do."""
    fields = []
    for choice in choices:
        column = _column(relation, columns, choice.column)
        if not applies(choice.transform, column.type):
            possible = [str(PartitionChoice(choice.column, transform)) for transform in _transforms(column)]
            raise TableError(
                f"{choice}: no partition of {relation}, since column {column.name} is {column.type} in the lake",
                f"use {', '.join(possible)}" if possible else "choose another column",
            )
        fields.append(PartitionedColumn(column.field_id, choice.transform))
    sorted_columns = []
    for wish in order:
        column = _column(relation, columns, wish.column)
        if column.type.kind is Kind.LIST:
            raise TableError(
                f"{relation} cannot be sorted by {column.name}, which is {column.type} in the lake",
                "choose another column",
            )
        sorted_columns.append(SortedColumn(column.field_id, wish.descending, wish.nulls_last))
    return LakePartitioning(tuple(fields), tuple(sorted_columns)) if fields or sorted_columns else None


def _column(relation: TableName, columns: Sequence[Column], name: str) -> Column:
    by_name = {column.name: column for column in columns}
    if name not in by_name:
        raise TableError(
            f"{relation} has no mirrored column {name}, by which its lake table is to be laid out",
            f"choose among {', '.join(by_name)}",
        )
    return by_name[name]


def _transforms(column: Column) -> list[str]:
    """Examples of what applies to a column."""
    return [name for name in _EXAMPLES if applies(name, column.type)]
