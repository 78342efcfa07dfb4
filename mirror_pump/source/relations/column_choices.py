"""The user's choices at register: other lake types for columns, masks, and columns to exclude.

A lake type may be chosen if it, or a raw text column for it, can hold every value of the Postgres type. Once a table
is registered, choices belong to attribute numbers, so that they survive a rename. A masked column is a string in the
lake, whatever its type, and stays masked whatever becomes of its type.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decoders.columns import ColumnType, Kind
from decoders.pgtypes import DOCUMENTS
from mirror_pump.errors import TableError, UsageError
from mirror_pump.model import Column, ExcludedColumn, MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.partition_choices import PartitionChoice, SortChoice
from mirror_pump.source.relations.relations import document_types, numeric_types

_TEXT = ColumnType(Kind.STRING)
_TEXTS = ColumnType(Kind.LIST, element=_TEXT)
_NUMERIC = frozenset({1700, 1231})
"""numeric and numeric[]."""


@dataclass(frozen=True)
class ColumnChoices:
    """The choices by column name, as the user wrote it."""

    types: Mapping[str, ColumnType] = field(default_factory=dict)
    """Without masked columns."""
    excluded: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """The only columns that the server sends. Empty: all that are not excluded, and those besides."""
    where: str = ""
    """The condition on the rows that are mirrored. Empty: all rows."""
    append_only: bool = False
    """The table has no key, and its rows are only inserted."""
    partition_by: tuple[PartitionChoice, ...] = ()
    """How the lake table is partitioned."""
    sort_by: tuple[SortChoice, ...] = ()
    """How its rows are sorted."""
    masks: Mapping[str, ColumnType] = field(default_factory=dict)
    """The types of masked columns."""

    def __bool__(self) -> bool:
        return self != NO_CHOICES

    def includes(self, name: str) -> bool:
        """Whether a column is mirrored."""
        return name not in self.excluded and (not self.listed or name in self.listed)

    @property
    def leaves_out_new(self) -> bool:
        """Whether columns that are added later are left out."""
        return bool(self.masks or self.listed)

    @property
    def lake_types(self) -> Mapping[str, ColumnType]:
        """The types that are chosen, masked ones too."""
        return {**self.types, **self.masks}

    @property
    def has_variants(self) -> bool:
        """Whether documents are to be variants."""
        return any(column_type.is_document for column_type in self.types.values())


NO_CHOICES = ColumnChoices()


def column_choices(**fields: Any) -> ColumnChoices:
    """Choices with these fields. Raises UsageError for a column about which two of them say different things."""
    choices = ColumnChoices(**fields)
    if both := choices.types.keys() & choices.masks.keys():
        raise UsageError(f"--mask and --column name {min(both)} twice", "a masked column is a string in the lake")
    chosen_columns = choices.lake_types.keys()
    if both := chosen_columns & choices.excluded:
        raise UsageError(f"column {min(both)} cannot both be excluded and have a type or a mask")
    if choices.listed and chosen_columns - choices.listed:
        raise UsageError(f"column {min(chosen_columns - choices.listed)} is not in --columns-only")
    return choices


def chosen(connection: PgConnection, relation: RelationDescription, choices: ColumnChoices) -> RelationDescription:
    """The description with the user's choices applied. Raises TableError for a choice that the table does not allow."""
    if not choices:
        return relation
    if choices.append_only and relation.key:
        raise TableError(f"{relation.name} has a key ({', '.join(relation.key)})", "register it without --append-only")
    names = {column.name for column in relation.columns}
    for name in sorted(choices.lake_types.keys() | choices.excluded | choices.listed):
        if name not in names:
            problem = (
                "is generated, and excluded anyway" if name in relation.generated else "is not a column of the table"
            )
            raise TableError(
                f"{relation.name}: {name} of {_option_of(choices, name)} {problem}",
                f"its columns are {', '.join(sorted(names))}",
            )
    refuse_list(relation, choices)
    for name in relation.key:
        if name in choices.excluded:
            raise TableError(
                f"{relation.name}: {name} is part of its key, and cannot be excluded",
                "the mirror finds rows by their key",
            )
        if name in choices.masks:
            raise TableError(
                f"{relation.name}: {name} is part of its key, and cannot be masked",
                "the mirror finds rows by their key, also in PostgreSQL. Give the table a key without personal data",
            )
    types = {column.type_oid for column in relation.columns}
    numeric = numeric_types(connection, types)
    documents = document_types(connection, types) if choices.has_variants else frozenset()
    columns = []
    lake_types = choices.lake_types
    for column in relation.columns:
        chosen_type = lake_types.get(column.name)
        if chosen_type is not None and not _permitted(
            column.type, chosen_type, numeric=column.type_oid in numeric, document=column.type_oid in documents
        ):
            raise TableError(
                f"{relation.name}: column {column.name} is {column.type_sql}; not every value of it can be"
                f" mirrored as {chosen_type}",
                f"keep {column.type}, or choose string",
            )
        if choices.includes(column.name):
            columns.append(column if chosen_type is None else replace(column, type=chosen_type, chosen=True))
    excluded = tuple(
        ExcludedColumn(column.attnum, column.name) for column in relation.columns if not choices.includes(column.name)
    )
    return replace(relation, columns=tuple(columns), excluded=excluded)


def _option_of(choices: ColumnChoices, name: str) -> str:
    """The option that names a column."""
    if name in choices.lake_types:
        return "--mask" if name in choices.masks else "--column"
    return "--exclude-column" if name in choices.excluded else "--columns-only"


def refuse_list(relation: RelationDescription, choices: ColumnChoices) -> None:
    """Raises TableError for a column list that the server would refuse, at once or at each UPDATE."""
    if not choices.listed:
        return
    name = relation.name
    if relation.identity.setting == "f":
        raise TableError(
            f"{name} has REPLICA IDENTITY FULL, under which PostgreSQL sends whole rows: it would refuse UPDATE and"
            " DELETE with a column list",
            "use --exclude-column: the pump discards what the server sends"
            if relation.whole_rows
            else f"ALTER TABLE {name.quoted} REPLICA IDENTITY DEFAULT, or use --exclude-column",
        )
    missing = [column for column in relation.key if column not in choices.listed]
    if missing:
        raise TableError(
            f"{name}: {missing[0]} is part of its key, and has to be listed", "the mirror finds rows by their key"
        )


def variant_columns(columns: Sequence[Column]) -> tuple[str, ...]:
    """Names of the columns that are variants in the lake."""
    return tuple(column.name for column in columns if column.type.is_document)


def still_chosen(relation: RelationDescription, table: MirroredTable) -> RelationDescription:
    """A later description of a registered table, with the choices of its registration applied.

    If a column's new type does not allow the chosen lake type, the column gets its default lake type.
    """
    left_out = {column.attnum for column in table.excluded}
    if table.leaves_out_new:
        left_out |= {column.attnum for column in relation.columns} - {column.attnum for column in table.columns}
    before = {column.attnum: column for column in table.columns if column.chosen}
    columns = tuple(
        _still_chosen(column, before.get(column.attnum)) for column in relation.columns if column.attnum not in left_out
    )
    excluded = tuple(
        ExcludedColumn(column.attnum, column.name) for column in relation.columns if column.attnum in left_out
    )
    return replace(relation, columns=columns, excluded=excluded)


def _still_chosen(column: Column, before: Column | None) -> Column:
    if before is None:
        return column
    same = (before.type_oid, before.type_modifier) == (column.type_oid, column.type_modifier)
    if same or _permitted(
        column.type, before.type, numeric=column.type_oid in _NUMERIC, document=column.type_oid in DOCUMENTS
    ):
        return replace(column, type=before.type, chosen=True)
    return column


def decimal_option(column: Column) -> str:
    """The option of `register` that makes decimals of a column of numbers that is text in the lake."""
    chosen_type = "decimal(38,9)" if column.type == _TEXT else "list<decimal(38,9)>"
    return f"--column {shlex.quote(f'{column.name}={chosen_type}')}"


def is_number_as_text(column: Column, numeric: Collection[int] = _NUMERIC) -> bool:
    """Whether a column is text in the lake, though its type is among `numeric`, and the user did not choose that."""
    return column.type_oid in numeric and column.type in (_TEXT, _TEXTS) and not column.chosen


def numbers_as_text(connection: PgConnection, table: MirroredTable | RelationDescription) -> tuple[Column, ...]:
    """The columns of numbers that are text in the lake, though the user did not choose that: `numeric` without a
    precision."""
    if not any(column.type in (_TEXT, _TEXTS) and not column.chosen for column in table.columns):
        return ()
    numeric = numeric_types(connection, {column.type_oid for column in table.columns})
    return tuple(column for column in table.columns if is_number_as_text(column, numeric))


def _permitted(column_type: ColumnType, chosen_type: ColumnType, *, numeric: bool, document: bool = False) -> bool:
    """Whether a column with the default lake type `column_type` may become `chosen_type`. `numeric`: the column's
    Postgres type, or that of its elements, is numeric. `document`: it is json or jsonb."""
    if chosen_type in (column_type, _TEXT) or chosen_type.mask is not None:
        return True
    element, chosen_element = column_type.element, chosen_type.element
    if element is not None and chosen_element is not None:
        return chosen_type == _TEXTS or _permitted(element, chosen_element, numeric=numeric)
    if element is not None or chosen_element is not None:
        return False
    if chosen_type.is_document:
        return document
    if chosen_type.kind is Kind.DECIMAL:
        return numeric or column_type.is_whole
    return chosen_type.kind is Kind.LONG and column_type.kind is Kind.INT
