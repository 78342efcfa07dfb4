"""Finds the tables that a statement names, in the tree that DuckDB parses it into.

DuckDB's own get_table_names() also binds the statement, to tables of which it knows no columns, and so refuses what
needs them: JOIN ... USING, NATURAL JOIN, COLUMNS('pattern').
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import duckdb


def tables_of(connection: duckdb.DuckDBPyConnection, query: str) -> frozenset[tuple[str, ...]]:
    """The tables that a query names, each as the parts of its name: (catalog, schema, name), without what was left out.
    Names that WITH defines are not among them. Raises duckdb.Error if the text cannot be parsed, or is no query."""
    import duckdb

    ((text,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [query]).fetchall()
    tree = orjson.loads(text)
    if tree["error"]:
        raise duckdb.ParserException(tree["error_message"])
    return frozenset(_named(tree["statements"], frozenset()))


def _named(node: Any, defined: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """The tables in a part of the tree. `defined`: names from WITH that are valid there, in lower case."""
    if isinstance(node, list):
        for element in node:
            yield from _named(element, defined)
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
        yield from _named(entry["value"], defined)
        defined |= {entry["key"].lower()}
    for name, child in node.items():
        if name != "cte_map":
            yield from _named(child, defined)
