"""Reads the rows of a query by the names of its columns.

A query with three columns or more names all of them. Its rows are frozen dataclasses with a field for each column, so
that no caller counts columns, and a column that is added, moved or renamed is an error instead of a wrong value. The
rows of queries with one or two columns are plain tuples, which callers unpack.

A class that the rest of the program uses as it is, with types that PostgreSQL does not have, is a TypedRow.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import psycopg
from psycopg.abc import Params
from psycopg.rows import RowFactory, class_row, kwargs_row

from mirror_pump.model import TableName

_Row = TypeVar("_Row")


class TypedRow:
    """A row class whose fields have the program's types: an enumeration is made of its value, a tuple or frozen set of
    an array, and a TableName of the columns `schema_name` and `table_name` or `relation_name`. All may be NULL."""

    def of_class(self, parent: type[Any]) -> dict[str, Any]:
        """The values of the fields that a parent class has."""
        return {field.name: getattr(self, field.name) for field in fields(parent)}


def execute_for(
    connection: psycopg.Connection[Any], row_class: type[_Row], query: str | bytes, parameters: Params | None = None
) -> psycopg.Cursor[_Row]:
    """Executes a query for the caller to fetch its rows, of which there may be any number. In a pipeline the rows come
    later, with those of the queries behind it. Raises psycopg.Error."""
    return connection.cursor(row_factory=_factory(row_class)).execute(query, parameters)


def fetch_rows(
    connection: psycopg.Connection[Any], row_class: type[_Row], query: str | bytes, parameters: Params | None = None
) -> list[_Row]:
    """All rows of a query. `row_class` takes the query's columns as keyword arguments. Raises psycopg.Error."""
    return execute_for(connection, row_class, query, parameters).fetchall()


def fetch_row(
    connection: psycopg.Connection[Any], row_class: type[_Row], query: str | bytes, parameters: Params | None = None
) -> _Row | None:
    """The first row of a query; None if it has none. Otherwise like `fetch_rows`."""
    return execute_for(connection, row_class, query, parameters).fetchone()


def _factory(row_class: type[_Row]) -> RowFactory[_Row]:
    return kwargs_row(partial(_typed, row_class)) if issubclass(row_class, TypedRow) else class_row(row_class)


def _typed(row_class: type[_Row], **columns: Any) -> _Row:
    for name, kind in _kinds(row_class):  # type: ignore[arg-type]  # classes are hashable
        if kind is TableName:
            schema, table = (columns.pop(key) for key in list(columns) if key in _NAME_COLUMNS)
            columns[name] = None if schema is None else TableName(schema, table)
        elif columns[name] is not None:
            columns[name] = kind(columns[name])
    return row_class(**columns)


_NAME_COLUMNS = ("schema_name", "table_name", "relation_name")
"""Queries have the schema first."""


@cache
def _kinds(row_class: type[object]) -> list[tuple[str, Any]]:
    """The fields whose values are made of others, and the types that make them."""
    hints = get_type_hints(row_class)
    kinds = []
    for field in fields(row_class):  # type: ignore[arg-type]
        hint = hints[field.name]
        for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
            made_of = get_origin(kind) or kind
            if made_of in (tuple, frozenset, TableName) or (isinstance(made_of, type) and issubclass(made_of, Enum)):
                kinds.append((field.name, made_of))
                break
    return kinds
