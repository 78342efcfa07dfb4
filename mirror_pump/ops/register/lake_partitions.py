"""How the lake table of a plain mirrored table is partitioned and sorted, or is to be: checked against its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.errors import TableError
from mirror_pump.lake.format.partitioning import applies
from mirror_pump.model import (
    Column,
    LakePartitioning,
    MirroredTable,
    PartitionedColumn,
    SortedColumn,
    TableName,
)
from mirror_pump.source.options.option_values import refuse_alteration
from mirror_pump.source.options.table_option import Alteration
from mirror_pump.source.options.table_options import OPTIONS
from mirror_pump.source.relations.partition_choices import PartitionChoice, SortChoice, partition_choices, sort_choices


@dataclass(frozen=True)
class LayoutOptions:
    """Another layout, as a user names it."""

    partition_by: tuple[PartitionChoice, ...] | None = None
    """Empty: no partitions. None: as they are."""
    sort_by: tuple[SortChoice, ...] | None = None
    """Empty: no order. None: as it is."""


_EXAMPLES = ("identity", "year", "month", "day", "hour", "bucket[16]", "truncate[10]")


def partitioning_by(
    relation: TableName, columns: Sequence[Column], choices: Sequence[PartitionChoice], order: Sequence[SortChoice]
) -> LakePartitioning | None:
    """The lake table's partitioning; None without choices. `columns` are those of the lake table. Raises TableError for
    a column that it does not have, or whose type does not do."""
    fields = []
    for choice in choices:
        column = _column(relation, columns, choice.column, "--partition-by")
        if not applies(choice.transform, column.type):
            possible = [str(PartitionChoice(choice.column, transform)) for transform in _transforms(column)]
            raise TableError(
                f"{choice}: no partition of {relation}, since column {column.name} is {column.type.shown} in the lake",
                f"use {', '.join(possible)}" if possible else "choose another column",
            )
        fields.append(PartitionedColumn(column.field_id, choice.transform))
    sorted_columns = []
    for wish in order:
        column = _column(relation, columns, wish.column, "--sort-by")
        if column.type.element is not None or column.type.is_document:
            raise TableError(
                f"{relation} cannot be sorted by {column.name}, which is {column.type.shown} in the lake",
                "choose another column",
            )
        sorted_columns.append(SortedColumn(column.field_id, wish.descending, wish.nulls_last))
    return LakePartitioning(tuple(fields), tuple(sorted_columns)) if fields or sorted_columns else None


def altered_partitioning(table: MirroredTable, wish: LayoutOptions) -> LakePartitioning | None:
    """Return the layout that the table would have. Raises TableError if it cannot have it."""
    for option in OPTIONS:
        if option.alter is Alteration.LAYOUT and getattr(wish, option.wish_field) is not None:
            refuse_alteration(table, option.key)
    partition_by = partition_choices(table) if wish.partition_by is None else wish.partition_by
    sort_by = sort_choices(table) if wish.sort_by is None else wish.sort_by
    return partitioning_by(table.name, table.columns, partition_by, sort_by)


def _column(relation: TableName, columns: Sequence[Column], name: str, option: str) -> Column:
    by_name = {column.name: column for column in columns}
    if name not in by_name:
        raise TableError(
            f"{relation} has no mirrored column {name}, which {option} names",
            f"choose among {', '.join(by_name)}",
        )
    return by_name[name]


def _transforms(column: Column) -> list[str]:
    """Examples of what applies to a column."""
    return [name for name in _EXAMPLES if applies(name, column.type)]
