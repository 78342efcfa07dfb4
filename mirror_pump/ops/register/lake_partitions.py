"""How the lake table of a plain mirrored table is partitioned, checked against its columns."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.errors import TableError
from mirror_pump.lake.format.partitioning import applies
from mirror_pump.model import Column, LakePartitioning, PartitionedColumn, TableName
from mirror_pump.source.relations.partition_choices import PartitionChoice

_EXAMPLES = ("identity", "year", "month", "day", "hour", "bucket[16]", "truncate[10]")


def partitioning_by(
    relation: TableName, columns: Sequence[Column], choices: Sequence[PartitionChoice]
) -> LakePartitioning | None:
    """The lake table's partitioning; None without choices. `columns` are those of the lake table. Raises TableError for
    a column that it does not have, or whose type the transform does not apply to."""
    by_name = {column.name: column for column in columns}
    fields = []
    for choice in choices:
        column = by_name.get(choice.column)
        if column is None:
            raise TableError(
                f"{relation} has no mirrored column {choice.column}, by which its lake table is to be partitioned",
                f"choose among {', '.join(by_name)}",
            )
        if not applies(choice.transform, column.type):
            possible = [str(PartitionChoice(choice.column, transform)) for transform in _transforms(column)]
            raise TableError(
                f"{choice}: no partition of {relation}, since column {column.name} is {column.type} in the lake",
                f"use {', '.join(possible)}" if possible else "choose another column",
            )
        fields.append(PartitionedColumn(column.field_id, choice.transform))
    return LakePartitioning(tuple(fields)) if fields else None


def _transforms(column: Column) -> list[str]:
    """Examples of what applies to a column."""
    return [name for name in _EXAMPLES if applies(name, column.type)]
