"""Finds the tables that a statement names, in the tree that DuckDB parses it into, and what its plan reads of them.

DuckDB's own get_table_names() also binds the statement, to tables of which it knows no columns, and so refuses what
needs them: JOIN ... USING, NATURAL JOIN, COLUMNS('pattern').
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from mirror_pump.errors import UsageError

if TYPE_CHECKING:
    import duckdb


def tables_of(connection: duckdb.DuckDBPyConnection, query: str) -> frozenset[tuple[str, ...]]:
    """The tables that a query names, each as the parts of its name: (catalog, schema, name), without what was left out.
    Names that WITH defines are not among them. Raises duckdb.Error if the text cannot be parsed, or is no query, and
    UsageError if it is nested too deeply."""
    import duckdb

    with of_limited_depth():
        tree = parsed(connection, query)
        if tree["error"]:
            raise duckdb.ParserException(tree["error_message"])
        return frozenset(_table_names(tree["statements"], frozenset()))


def parsed(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """What DuckDB parses the query into: {"error": bool, "error_message" or "statements": ...}."""
    ((text,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [query]).fetchall()
    tree: dict[str, Any] = orjson.loads(text)
    return tree


@contextmanager
def of_limited_depth() -> Iterator[None]:
    """For what reads the tree of a statement: raises UsageError if that is too deep for Python."""
    try:
        yield
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError) as error:
        raise UsageError(
            "the statement is nested too deeply", "name its parts, by WITH, and nest the names instead"
        ) from error


def _table_names(node: Any, defined: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """The tables in a part of the tree. `defined`: names from WITH that are valid there, in lower case."""
    if isinstance(node, list):
        for element in node:
            yield from _table_names(element, defined)
    if not isinstance(node, dict):
        return
    if node.get("type") == "BASE_TABLE":
        parts = tuple(part for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part)
        if len(parts) > 1 or parts[0].lower() not in defined:
            yield parts
    if node.get("type") == "RECURSIVE_CTE_NODE":
        defined |= {node["cte_name"].lower()}
    # A definition sees those before it. Without RECURSIVE, its own name is that of a table.
    for entry in node.get("cte_map", {}).get("map", ()):
        yield from _table_names(entry["value"], defined)
        defined |= {entry["key"].lower()}
    for name, child in node.items():
        if name != "cte_map":
            yield from _table_names(child, defined)


@dataclass(frozen=True)
class TableScan:
    """One scan of a table in a plan."""

    table: str
    """SCHEMA.NAME, as DuckDB prints it."""
    columns: frozenset[str]
    """Those that it passes on. One that only a filter uses need not be among them."""
    filters: tuple[str, ...]
    """What a row has to pass, as DuckDB prints it."""


def planned_scans(connection: duckdb.DuckDBPyConnection, statement: str) -> list[TableScan] | None:
    """The scans in the statement's plan, in no order. None if DuckDB yields no plan."""
    import duckdb

    try:
        ((_, text),) = connection.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()
        pending = list(orjson.loads(text))
    except (duckdb.Error, ValueError):
        return None
    scans = []
    while pending:
        node = pending.pop()
        pending += node["children"]
        more = node.get("extra_info") or {}
        table = more.get("Table")
        if isinstance(table, str):
            columns, filters = _texts(more.get("Projections")), _texts(more.get("Filters"))
            scans.append(TableScan(table.partition(".")[2], frozenset(columns), filters))
    return scans


def _texts(value: Any) -> tuple[str, ...]:
    """DuckDB prints one text as it is, several as a list, and none as nothing."""
    return (value,) if isinstance(value, str) else tuple(value or ())
