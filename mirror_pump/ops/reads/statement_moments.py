"""Finds the moments that a statement names for its tables.

`orders AT (VERSION => '16/B374D848')` is DuckDB's form of it, or `orders AT (TIMESTAMP => '2026-11-20 16:00')` with a
time; `orders AT '16/B374D848'` is a short form of both. DuckDB has no such tables, so the statement that it runs names
a view instead of each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from mirror_pump.errors import UsageError, one_line_of
from mirror_pump.ops.duckdb_connection import open_planner
from mirror_pump.ops.reads.statement_tables import of_limited_depth, parsed
from mirror_pump.ops.reads.statements import divided_explain, quoted_or_comment
from mirror_pump.ops.reads.time_travel import PastPoint, parse_point

_SCHEMA = "mirror_pump_past"

_MAY_NAME = re.compile(r"\bat\s*['(]", re.IGNORECASE)
_SHORT = re.compile(r"(?<![\w$.])at\s*\Z", re.IGNORECASE)
"""The word AT, right before a text. DuckDB's SQL has no other use for that."""


@dataclass(frozen=True)
class PastTable:
    """A table that a statement reads as of a moment of its own."""

    parts: tuple[str, ...]
    """Its name: schema and name, without what was left out."""
    when: PastPoint
    view: str
    """The SQL name of the view that stands for it in the statement."""


def with_views(statement: str) -> tuple[str, tuple[PastTable, ...]]:
    """The statement with a view instead of each table that it reads as of a moment of its own, and these tables.

    A statement without such tables stays as it is, also one that DuckDB cannot parse. Raises UsageError for a moment
    that is neither a WAL position nor a time, and for a statement that is nested too deeply.
    """
    import duckdb

    if not _MAY_NAME.search(statement):
        return statement, ()
    spelled = _spelled_out(statement)
    prefix, query = divided_explain(spelled)
    with open_planner() as connection, of_limited_depth():
        tree = parsed(connection, query)
        if tree["error"]:
            return spelled, ()
        nodes = list(_with_moment(tree["statements"]))
        if not nodes:
            return statement, ()
        tables = tuple(_replaced(node, number) for number, node in enumerate(nodes))
        try:
            ((rewritten,),) = connection.execute(
                "SELECT json_deserialize_sql($1::JSON)", [orjson.dumps(tree).decode()]
            ).fetchall()
        except duckdb.Error as error:
            raise UsageError(
                f"DuckDB cannot print this statement: {one_line_of(error)}", "read one moment only, with --at"
            ) from error
    return f"{prefix}{rewritten}", tables


def _spelled_out(statement: str) -> str:
    """The statement with AT (VERSION => 'x') for each AT 'x'."""
    parts = []
    end = 0
    for token in quoted_or_comment(statement):
        before = statement[end : token.start()]
        is_moment = token[0].startswith("'") and _SHORT.search(before) is not None
        parts += [before, f"(VERSION => {token[0]})" if is_moment else token[0]]
        end = token.end()
    return "".join([*parts, statement[end:]])


def _with_moment(node: Any) -> Iterator[dict[str, Any]]:
    """The tables in a part of the tree that have a moment of their own."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and node.get("type") == "BASE_TABLE" and node.get("at_clause"):
        yield node
    for child in children:
        yield from _with_moment(child)


def _replaced(node: dict[str, Any], number: int) -> PastTable:
    """Make a table of the tree a view, and return what it was."""
    parts = tuple(part for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part)
    table = PastTable(parts, _moment(node["at_clause"], ".".join(parts)), f'"{_SCHEMA}"."t{number}"')
    node["alias"] = node["alias"] or node["table_name"]
    node["catalog_name"], node["schema_name"], node["table_name"] = "", _SCHEMA, f"t{number}"
    node["at_clause"] = None
    return table


def _moment(clause: dict[str, Any], table: str) -> PastPoint:
    constant = clause["expr"]
    while constant.get("type") == "OPERATOR_CAST":
        constant = constant["child"]
    text = constant.get("value", {}).get("value")
    if not isinstance(text, str):
        raise UsageError(
            f"the moment of {table} is not a text constant",
            "give a WAL position or a time, such as AT '16/B374D848' or AT '2026-11-20T16:00:00Z'",
        )
    when = parse_point(text)
    if clause["unit"].upper() == "TIMESTAMP" and when.moment_ms is None:
        raise UsageError(f"the moment of {table} is not a time: {text}", f"AT (VERSION => '{text}') takes positions")
    return when
