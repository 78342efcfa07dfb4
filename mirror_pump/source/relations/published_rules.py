"""Column lists and row filters that an administrator gave a table in the publication.

The publication decides what the server sends. So a table takes such rules over as if it had been registered with them,
under the same conditions, and is copied again. What a registration keeps out of the lake stays out: columns that it
excludes or masks do not come by a list, and rules that it was given are replaced by others, but not lifted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

from mirror_pump.errors import TableError
from mirror_pump.model import Column, ExcludedColumn, MirroredTable, TableId
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.column_choices import ColumnChoices, refuse_list, still_chosen
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.relations import describe
from mirror_pump.source.relations.row_filters import published_filter, refuse_filter
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("publication")


@dataclass(frozen=True)
class PublishedRules:
    """How the publication has a table; a row of the query `rules`."""

    published_mark: str
    """The mark of this state, as modak.mirror_publications gives it."""
    listed: list[int]
    """Attribute numbers of the column list; empty for all columns."""
    condition: str
    """The row filter as the server prints it; empty for all rows."""
    mark: str | None
    """The mark of the row filter."""
    may_be_lifted: bool
    """Whether the table was registered without rules, so that it may get all columns and rows back."""


def read_rules(connection: PgConnection, publication: str, table_id: TableId) -> PublishedRules | None:
    """What the publication has of a table. None if it is not in there."""
    with source_errors(f"reading publication {publication}"):
        return fetch_row(
            connection, PublishedRules, _SQL["rules"], {"publication": publication, "table_id": int(table_id)}
        )


def published_choices(
    connection: PgConnection, publication: str, table_id: TableId, choices: ColumnChoices
) -> ColumnChoices:
    """The choices of a registration, with the rules that the publication has already, unless it chooses rules."""
    rules = None if choices.where or choices.listed else read_rules(connection, publication, table_id)
    if rules is None or not (rules.listed or rules.condition):
        return choices
    names = _listed_columns(describe(connection, table_id, publication), rules)
    listed = frozenset(column.name for column in names) if rules.listed else frozenset()
    return replace(choices, listed=listed, where=rules.condition)


def with_rules(
    connection: PgConnection, publication: str, table: MirroredTable, rules: PublishedRules
) -> MirroredTable:
    """A registered table with the publication's present rules. Raises TableError if they cannot be taken over."""
    name = table.name
    if table.tier is not None:
        raise TableError(f"{name}: a table whose rows leave the heap cannot have a row filter or a column list")
    lifted = (table.column_list and not rules.listed) or (table.row_filter and not rules.condition)
    if lifted and not rules.may_be_lifted:
        raise TableError(
            f"{name} was registered with rules that are gone",
            "list all columns, or give it the row filter (true), if all may reach the lake",
        )
    if table.append_only and rules.condition:
        raise TableError(f"{name} has no key, and a row filter needs one")
    relation = describe(connection, table.table_id, publication, table.mode)
    if rules.listed or table.column_list:
        table = _with_columns(relation, table, _columns(relation, table, rules), listed=bool(rules.listed))
    if rules.condition:
        row_filter = published_filter(connection, publication, table.table_id)
        if row_filter is not None:
            refuse_filter(still_chosen(relation, table), row_filter)
    return replace(table, row_filter=rules.condition)


def _with_columns(
    relation: RelationDescription, table: MirroredTable, columns: tuple[Column, ...], *, listed: bool
) -> MirroredTable:
    attnums = {column.attnum for column in columns}
    key = {column.attnum for column in table.key_columns}
    return replace(
        table,
        columns=columns,
        excluded=tuple(
            ExcludedColumn(column.attnum, column.name) for column in relation.columns if column.attnum not in attnums
        ),
        key=tuple(column.name for column in columns if column.attnum in key),
        next_field_id=max(table.next_field_id, 1 + max(column.field_id for column in columns)),
        leaves_out_new=listed or bool(table.masked_columns),
        column_list=listed,
    )


def _listed_columns(relation: RelationDescription, rules: PublishedRules) -> tuple[Column, ...]:
    """The columns that the publication has. Raises TableError for one that cannot be mirrored."""
    unknown = set(rules.listed) - {column.attnum for column in relation.columns}
    if unknown:
        raise TableError(
            f"{relation.name}: the column list has a column that cannot be mirrored, such as a generated one"
        )
    return tuple(column for column in relation.columns if not rules.listed or column.attnum in rules.listed)


def _columns(relation: RelationDescription, table: MirroredTable, rules: PublishedRules) -> tuple[Column, ...]:
    """The columns under the rules, by their present names. Raises TableError if they may not or cannot be mirrored."""
    former_columns = {column.attnum: column for column in table.columns}
    listed = _listed_columns(relation, rules)
    numbers = {column.attnum for column in listed}
    if rules.listed:
        refuse_list(relation, ColumnChoices(listed=frozenset(column.name for column in listed)))
    hidden = [column.name for column in listed if column.attnum not in former_columns]
    if hidden and (table.masked_columns or (table.excluded and not table.column_list)):
        raise TableError(f"{table.name}: column {hidden[0]} is published, and was left out when it was registered")
    masked = [column.name for column in table.masked_columns if column.attnum not in numbers]
    if masked:
        raise TableError(f"{table.name}: the column list lacks {masked[0]}, whose mask would be forgotten")
    by_column = set() if table.partitioning is None else table.partitioning.field_ids
    if by_column - {column.field_id for column in table.columns if column.attnum in numbers}:
        raise TableError(f"{table.name}: the column list lacks a column by which the lake table is partitioned")
    next_field_id = table.next_field_id or max(column.field_id for column in table.columns) + 1
    columns = []
    for column in listed:
        if column.attnum in former_columns:
            columns.append(replace(former_columns[column.attnum], name=column.name))
        else:
            columns.append(replace(column, field_id=next_field_id))
            next_field_id += 1
    return tuple(columns)


def take_over(cursor: psycopg.Cursor[tuple[object, ...]], table: MirroredTable, rules: PublishedRules) -> None:
    """Records the rules of `table`, and the state of the publication in which it had them: a later one differs."""
    cursor.execute(
        _SQL["take_over"],
        {
            "table_id": table.table_id,
            "column_list": table.column_list,
            "row_filter": table.row_filter,
            "mark": rules.mark,
            "leaves_out_new": table.leaves_out_new,
            "may_be_lifted": rules.may_be_lifted,
            "published": rules.published_mark,
        },
    )
