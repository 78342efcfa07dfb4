"""No two classes share a name, so that a name in a search, in a log or in a discussion has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("decoders", "mirror_pump", "sql", "benchmarks", "tests")


def _classes(tree: ast.Module) -> Iterator[str]:
    """Names of the module's classes and of its type aliases with a capital, without a leading underscore.

    Aliases are marked by `=`: two modules may have aliases of one name, but none has the name of a class.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            name = target.id.lstrip("_")
            if name[:1].isupper() and not name.isupper():
                yield f"={name}"


def _shared(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """By name, the places of classes that share it; `sources` is by path."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    aliases: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in sources.items():
        for name in _classes(ast.parse(text, path)):
            (aliases if name.startswith("=") else places)[name.removeprefix("=")].append(path)
    found = {name: [*paths, *aliases.get(name, ())] for name, paths in places.items()}
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_two_classes_share_a_name() -> None:
    paths = [path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")]
    assert len(paths) > 300, "the project's modules were not found"
    assert _shared({str(path.relative_to(_ROOT)): path.read_text(encoding="utf-8") for path in paths}) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class Commit: ...", "class Commit: ..."),
        ("class Commit: ...", "class _Commit: ..."),
        ("class Commit: ...", "def f():\n    class Commit: ..."),
        ("class Commit: ...", "Commit = int | str"),
        ("class Commit: ...", "Commit: TypeAlias = int"),
    ],
)
def test_a_shared_name_is_found(first: str, second: str) -> None:
    assert _shared({"a.py": first, "b.py": second}) == {"Commit": ["a.py", "b.py"]}


def test_aliases_may_share_a_name() -> None:
    assert _shared({"a.py": "Rows = list[int]", "b.py": "Rows = dict[int, str]"}) == {}
