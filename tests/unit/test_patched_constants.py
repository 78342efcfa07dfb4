"""No test replaces a constant of the program: tests change settings, internal limits or parameters.

Replacing a function is allowed: it injects a fault, or observes a step.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_MAY_REPLACE = re.compile(r"setattr|patch|\._?[A-Z][A-Z0-9_]*\s*[^\w\s]{0,2}=")
"""What the text of a module has that replaces something. Only such modules are parsed."""
_PATCHES = frozenset({"setattr", "patch", "object"})
"""`monkeypatch.setattr`, `mock.patch` and `mock.patch.object`."""


def patched_constants(code: str) -> Iterator[str]:
    """The constants that the code replaces in a module or class: `line: name`."""
    modules = set[str]()
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        for name in _replaced(node, modules):
            if _CONSTANT.fullmatch(name.rpartition(".")[2]):
                yield f"{getattr(node, 'lineno', 0)}: {name}"


def _replaced(node: ast.AST, modules: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Call):
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in _PATCHES:
            # The target is one dotted text, or an object and the name of its attribute.
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value
                    break
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    for target in targets:
        if isinstance(target, ast.Attribute) and _root(target) in modules:
            yield target.attr


def _root(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_no_constant_is_patched(folder: str) -> None:
    found = [
        f"{path.relative_to(_ROOT)}:{place}"
        for path in sorted((_ROOT / folder).rglob("*.py"))
        if _MAY_REPLACE.search(code := path.read_text(encoding="utf-8"))
        for place in patched_constants(code)
    ]
    assert not found, "give the function a parameter, or add a field to mirror_pump.settings.limits: " + ", ".join(
        found
    )


@pytest.mark.parametrize(
    "code",
    [
        'monkeypatch.setattr(fold, "_STALE_AGE", 0.0)',
        'monkeypatch.setattr("mirror_pump.spark.heap._LEAST_BLOCKS", 1)',
        'setattr(fold, "LIMIT", 0)',
        'with mock.patch("mirror_pump.ops.verify.comparison.SHOWN", 1): pass',
        'with mock.patch.object(comparison, "SHOWN", 1): pass',
        'with patch("a.b.SHOWN2", 1): pass',
        "from a import b\nb.SHOWN = 1",
        "import a.b\na.b.SHOWN += 1",
    ],
)
def test_each_way_to_patch_a_constant_is_found(code: str) -> None:
    assert len(list(patched_constants(code))) == 1
    assert _MAY_REPLACE.search(code)


@pytest.mark.parametrize(
    "code",
    [
        'monkeypatch.setattr(source, "run", dying)',
        'monkeypatch.setattr(Procedures, "unreferenced", late)',
        'monkeypatch.setattr(segment, "RawBuffer", small)',
        'monkeypatch.setenv("MIRROR_PUMP_LIMITS__VERIFY_PAUSE", "0")',
        "self.STATE = 1",
    ],
)
def test_other_patches_are_allowed(code: str) -> None:
    assert list(patched_constants(code)) == []
