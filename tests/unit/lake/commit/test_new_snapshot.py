"""Snapshots of all kinds are put together by one body."""

from __future__ import annotations

import ast
from pathlib import Path

import mirror_pump

ROOT = Path(mirror_pump.__file__).parent
STEPS = {"next", "snapshot"}
"""The steps of ManifestWriter that only the body takes."""
BODY = Path("lake/commit/new_snapshot.py")


def test_only_the_body_of_a_snapshot_takes_its_steps() -> None:
    callers = {
        path.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if "ManifestWriter" in (source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STEPS
        if "writer" in ast.unparse(node.func.value)
    }
    assert callers == {BODY}
