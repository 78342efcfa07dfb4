"""What a statement's plan reads: the scans of tables in it, with their columns and filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    import duckdb


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
    found = []
    while pending:
        node = pending.pop()
        pending += node["children"]
        more = node.get("extra_info") or {}
        table = more.get("Table")
        if isinstance(table, str):
            columns, filters = _texts(more.get("Projections")), _texts(more.get("Filters"))
            found.append(TableScan(table.partition(".")[2], frozenset(columns), filters))
    return found


def _texts(value: Any) -> tuple[str, ...]:
    """DuckDB prints one text as it is, several as a list, and none as nothing."""
    return (value,) if isinstance(value, str) else tuple(value or ())
