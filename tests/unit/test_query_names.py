"""Every named statement that the program asks for is in sql/queries, and every one there is asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sql import queries

_ROOT = Path(__file__).parents[2]
_PROGRAM = ("mirror_pump", "sql")
_RUN_AS_A_WHOLE = {"event_triggers"}
"""Files of which a module runs every statement."""


def _modules() -> Iterator[Path]:
    for directory in _PROGRAM:
        yield from sorted((_ROOT / directory).rglob("*.py"))


def _named(text: str) -> Iterator[tuple[int, str, str]]:
    """Lines of a module that look a statement up by a constant name: line, file of sql/queries, name."""
    if "queries(" not in text:
        return
    tree = ast.parse(text)
    files: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=variable)],
                value=ast.Call(func=ast.Name(id="queries"), args=[ast.Constant(value=str(file))]),
            ):
                files[variable] = file
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=str(name))) if variable in files:
                yield node.lineno, files[variable], name


def test_every_statement_that_is_asked_for_exists() -> None:
    missing = [
        f"{path.relative_to(_ROOT)}:{line}: {name} is not in sql/queries/{file}.sql"
        for path in _modules()
        for line, file, name in _named(path.read_text(encoding="utf-8"))
        if name not in queries(file)
    ]
    assert missing == []


def test_every_statement_is_asked_for() -> None:
    constants = {
        node.value
        for path in _modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    unused = [
        f"sql/queries/{path.name}: {name}"
        for path in sorted((_ROOT / "sql" / "queries").glob("*.sql"))
        for name in queries(path.stem)
        if name not in constants and path.stem not in _RUN_AS_A_WHOLE
    ]
    assert unused == []


def test_a_missing_statement_is_found() -> None:
    text = '_SQL = queries("server")\n_SQL["facts"]\n_SQL["no such"]\n_SQL[name]\nother["facts"]'
    assert list(_named(text)) == [(2, "server", "facts"), (3, "server", "no such")]
