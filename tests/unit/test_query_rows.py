"""Rows of queries are read by name (mirror_pump/source/rows.py), and long statements are in sql/."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MOST_UNPACKED = 2
"""The most columns of a row that is unpacked."""
_BEFORE_COMPOSED = 3
"""Columns before those that a statement composes for a table: `for pk, version, operation, *values in rows`."""
_FETCH = {"execute", "fetchone", "fetchall", "fetchmany"}


def test_rows_of_queries_are_read_by_name() -> None:
    found = [
        f"{path.relative_to(_ROOT)}:{line}"
        for path in sorted((_ROOT / "mirror_pump").rglob("*.py"))
        for line in _read_by_place(path.read_text(encoding="utf-8"))
    ]
    assert found == [], (
        "give the columns names, and read them with fetch_row or fetch_rows (mirror_pump/source/rows.py)"
    )


def test_sql_longer_than_a_line_is_in_files() -> None:
    found = [
        f"{path.relative_to(_ROOT)}:{line}"
        for path in sorted((_ROOT / "mirror_pump").rglob("*.py"))
        if "testing" not in path.parts
        for line in _long_statements(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "move the statement to sql/queries"


def test_a_long_statement_is_found_unless_it_is_composed() -> None:
    assert list(_long_statements('x = (\n "SELECT 1"\n " FROM t"\n)')) == [2]
    assert list(_long_statements('x = "SELECT 1 FROM t"')) == []
    assert list(_long_statements('x = (\n f"SELECT {x}"\n " FROM t"\n)')) == []
    assert list(_long_statements('x = sql.SQL(\n "SELECT {x}"\n " FROM t"\n).format(x=x)')) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = row[1]",
        "x = row[-1]",
        "x = row[1:]",
        "x = rows[0][2]",
        "x = Point(*row)",
        "a, b, c = row",
        "((a, b, c),) = connection.execute(query).fetchall()",
        "x = [a for a, b, c in rows]",
        "for a, b, c in connection.execute(query): pass",
        "a, b, c, d, *rest = row",
    ],
)
def test_reading_by_place_is_found(text: str) -> None:
    assert list(_read_by_place(text)) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "x = row[0]",
        "a, b = row",
        "((a, b),) = connection.execute(query).fetchall()",
        "for a, *values in connection.execute(query): pass",
        # DuckDB's rows have no names.
        "((a, b, c),) = duckdb.execute(query).fetchall()",
    ],
)
def test_scalars_and_pairs_are_unpacked(text: str) -> None:
    assert list(_read_by_place(text)) == []


def _read_by_place(text: str) -> Iterator[int]:
    """Lines of a module that depend on the order of a query's columns."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=value, slice=place) if _is_row(value):
                if _is_place(place):
                    yield node.lineno
            case ast.Call(args=arguments):
                if any(isinstance(argument, ast.Starred) and _is_row(argument.value) for argument in arguments):
                    yield node.lineno
            case ast.Assign(targets=targets, value=value) if _has_rows(value):
                if any(_counts(target) for target in targets):
                    yield node.lineno
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if _has_rows(value):
                if _counts(target):
                    yield target.lineno


def _long_statements(text: str) -> Iterator[int]:
    """First lines of constant statements in a module that take several lines."""
    tree = ast.parse(text)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            statement = re.match(r"\s*(SELECT|WITH|INSERT INTO|UPDATE|DELETE FROM|CREATE) [^{]*$", node.value)
            if statement and node.end_lineno != node.lineno:
                yield node.lineno


def _is_row(node: ast.expr) -> bool:
    """Whether this is `row`, or `rows[0]`."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == "rows" and isinstance(node.slice, ast.Constant)
    return isinstance(node, ast.Name) and node.id == "row"


def _is_place(index: ast.expr) -> bool:
    """Whether an index is a slice or a number except 0. A variable finds a column that a statement composed."""
    constant = isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value != 0
    return constant or isinstance(index, ast.Slice | ast.UnaryOp)


def _has_rows(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("row", "rows")
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FETCH:
        node = node.func.value
        if isinstance(node, ast.Name | ast.Attribute):
            return not (isinstance(node, ast.Name) and node.id == "duckdb")
    return False


def _counts(target: ast.expr) -> bool:
    """Whether a row is unpacked into more names than a reader can keep in mind."""
    if not isinstance(target, ast.Tuple):
        return False
    if len(target.elts) == 1:
        return _counts(target.elts[0])
    starred = any(isinstance(element, ast.Starred) for element in target.elts)
    return len(target.elts) > (_BEFORE_COMPOSED + 1 if starred else _MOST_UNPACKED)
