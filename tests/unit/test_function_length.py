"""Functions that decide about a table's content are short enough to be understood at a glance."""

from __future__ import annotations

import ast
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "mirror_pump"
_LONGEST = 40
"""Lines, including signature and docstring."""
_SHORT = (
    "pipeline/operations/*.py",
    "pipeline/publish/staging.py",
    "pipeline/publish/staged_publish.py",
    "pipeline/publish/publisher.py",
    "pipeline/publish/archive_refresh.py",
    "pipeline/publish/swap_in.py",
    "lake/commit/row_delta.py",
    "lake/commit/replacement.py",
    "lake/commit/file_rewrite.py",
    "lake/commit/archive_branch.py",
)
"""Operations, staging, commit and publish."""


def test_functions_of_staging_commit_and_publish_are_short() -> None:
    modules = [path for pattern in _SHORT for path in _PACKAGE.glob(pattern)]
    assert len(modules) >= len(_SHORT), "a module moved: name its new place"
    long = [
        f"{path.relative_to(_PACKAGE)}: {node.name} has {length} lines"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (length := (node.end_lineno or 0) - node.lineno + 1) > _LONGEST
    ]
    assert long == []
