"""Reads the rows of a query by the names of its columns.

A query with three columns or more names all of them. Its rows are frozen dataclasses with a field for each column, so
that no caller counts columns, and a column that is added, moved or renamed is an error instead of a wrong value. The
rows of queries with one or two columns are plain tuples, which callers unpack.
"""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.abc import Params
from psycopg.rows import class_row

_Row = TypeVar("_Row")


def execute_for(
    connection: psycopg.Connection[Any], row_class: type[_Row], query: str | bytes, parameters: Params | None = None
) -> psycopg.Cursor[_Row]:
    """Executes a query for the caller to fetch its rows, of which there may be any number. In a pipeline the rows come
    later, with those of the queries behind it. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(row_class)).execute(query, parameters)


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
