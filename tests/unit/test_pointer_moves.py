"""Pointers of lake tables move in one room of the mirror, `mirror_pump/pipeline/landing/`, and in the table library."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from sql import queries
from sql.mirror_names import of_mirror

_ROOT = Path(__file__).parents[2]
_MIRROR = _ROOT / "mirror_pump"
_ROOMS = ("pipeline/landing/", "tables/")
_FUNCTIONS = {"swap_pointer", "insert_pointer", "replace_pointer", "delete_pointer"}
_BELOW = {"lake/commit/catalog.py", "source/catalog/slot_row.py"}
"""What the rooms are made of: the statements for one pointer, and the slot's lock."""
_WRITES = re.compile(
    r"(UPDATE|INTO|DELETE FROM) modak\.iceberg_tables\b|FROM modak\.mirror_slots WHERE [^;]*FOR UPDATE", re.IGNORECASE
)
"""A statement that moves a pointer, or takes the lock under which they move."""

_MAY_MOVE = re.compile("|".join([r"\bqueries\(", *_FUNCTIONS]))
"""What the text of such a module has. Only such modules are parsed."""


def _moving_queries() -> dict[str, set[str]]:
    """File of sql/queries -> its statements that move pointers, or take the lock."""
    files = {path.stem: queries(path.stem) for path in (_ROOT / "sql" / "queries").glob("*.sql")}
    return {
        file: {name for name, text in statements.items() if _WRITES.search(of_mirror(text, None))}
        for file, statements in files.items()
    }


def _moves_pointers(tree: ast.Module, moving: dict[str, set[str]]) -> bool:
    """Whether a module imports a function, or takes a statement, that moves pointers."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return bool(imported & _FUNCTIONS) or any(
        name in moving.get(file, ()) for file, name in _statements(tree, _query_files(tree))
    )


def _query_files(tree: ast.Module) -> dict[str, str]:
    """Name of a variable -> the file whose statements it holds, as `_SQL = queries("publish")` says."""
    return {
        target.id: node.value.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "queries"
        and isinstance(node.value.args[0], ast.Constant)
        and isinstance(node.value.args[0].value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _statements(tree: ast.Module, files: dict[str, str]) -> set[tuple[str, str]]:
    """The statements that a module takes, with their files."""
    return {
        (files[node.value.id], node.slice.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in files
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    }


def test_pointers_move_in_the_landing_room_and_the_table_library() -> None:
    moving = _moving_queries()
    assert {"move_pointers", "swap_in", "lock_slot"} <= moving["publish"]
    modules = {
        path.relative_to(_MIRROR).as_posix()
        for path in _MIRROR.rglob("*.py")
        if _MAY_MOVE.search(text := path.read_text(encoding="utf-8"))
        if _moves_pointers(ast.parse(text), moving)
    }
    assert {"pipeline/landing/slot_lock.py", "pipeline/landing/published_tables.py"} <= modules, "nothing was found"
    assert "tables/catalogs/postgres_catalog.py" in modules
    assert {module for module in modules if not module.startswith(_ROOMS)} <= _BELOW


def test_a_move_elsewhere_is_found() -> None:
    moving = {"publish": {"move_pointers"}}
    for text in (
        "from mirror_pump.lake.commit.catalog import load_pointer, swap_pointer",
        '_SQL = queries("publish")\ndef f(c):\n    c.execute(_SQL["move_pointers"])',
    ):
        assert _moves_pointers(ast.parse(text), moving)
    assert not _moves_pointers(ast.parse('_SQL = queries("publish")\n_SQL["fail"]'), moving)
