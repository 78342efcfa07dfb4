"""Functions are short enough to be understood at a glance, above all those that decide about a table's content."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "mirror_pump"
_LONGEST = 60
"""Lines of any function, including signature and docstring."""
_LONGEST_OF_CONTENT = 40
"""Lines of those that decide about a table's content."""
_SHORT = (
    "pipeline/operations/*.py",
    "pipeline/publish/staging.py",
    "pipeline/publish/staged_publish.py",
    "pipeline/publish/publisher.py",
    "pipeline/publish/publish_transaction.py",
    "pipeline/publish/frontier_transaction.py",
    "pipeline/publish/catalog_tables.py",
    "pipeline/publish/archive_refresh.py",
    "pipeline/publish/due_tables.py",
    "pipeline/landing/*.py",
    "lake/commit/row_delta.py",
    "lake/commit/replacement.py",
    "lake/commit/file_rewrite.py",
    "lake/commit/archive_branch.py",
)
"""Operations, staging, commit and publish."""


def _longer_than(lines: int, modules: Iterable[Path]) -> set[str]:
    return {
        f"{path.relative_to(_PACKAGE)}: {node.name}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > lines
    }


def test_functions_of_staging_commit_and_publish_are_short() -> None:
    modules = [path for pattern in _SHORT for path in _PACKAGE.glob(pattern)]
    assert len(modules) >= len(_SHORT), "a module moved: name its new place"
    assert _longer_than(_LONGEST_OF_CONTENT, modules) == set()


def test_no_function_is_long() -> None:
    assert _longer_than(_LONGEST, _PACKAGE.rglob("*.py")) == set()
