"""A name is the noun of what it holds, and a program is named: neither is a word that fits anything."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("decoders", "mirror_pump", "sql")
_EMPTY_NAMES = frozenset(
    {"found", "known", "wanted", "present", "former", "held", "kept", "seen", "told", "own", "doomed"}
)
"""Not for a variable, parameter, attribute, function or class, also after an underscore, whatever its capitals."""
_IMPERSONAL = re.compile(r"\b(?:somebody|someone|nobody|whoever)\b", re.IGNORECASE)
"""Not in docstrings, comments and pages: they say which program, session or reader it is, or that it is an operator."""


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that a module gives, by line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def _prose(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    """The docstrings, those of attributes included, and the comments of a module, by line."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield node.lineno, docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _words(text: str) -> list[str]:
    """The words of a module that say nothing, each with its line, or that of the docstring it is in."""
    tree = ast.parse(text)
    words = [(line, name) for line, name in _names(tree) if name.strip("_").lower() in _EMPTY_NAMES]
    # To find the comments costs more than all else.
    if _IMPERSONAL.search(text):
        words += [(line, word) for line, prose in _prose(tree, text) for word in _IMPERSONAL.findall(prose)]
    return [f"{line}: {word}" for line, word in sorted(words)]


def _words_of_page(text: str) -> list[str]:
    """Likewise of a page; not what it quotes."""
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {word}" for number, line in lines for word in _IMPERSONAL.findall(re.sub('"[^"]*"', "", line))]


def _sources() -> Mapping[str, str]:
    paths = [path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py")]
    assert len(paths) > 300, "the project's modules were not found"
    return {
        str(path.relative_to(_ROOT)).removeprefix("mirror_pump/"): path.read_text(encoding="utf-8") for path in paths
    }


def test_names_say_what_they_hold_and_programs_are_named() -> None:
    words = [f"{path}:{word}" for path, text in _sources().items() for word in _words(text)]
    assert words == [], "name the thing that it holds, or the program that does it"


def test_pages_name_programs_and_people() -> None:
    pages = [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")]
    assert len(pages) > 60, "the pages were not found"
    words = {str(page.relative_to(_ROOT)): _words_of_page(page.read_text(encoding="utf-8")) for page in pages}
    assert {page: lines for page, lines in words.items() if lines} == {}, "name the program or the person"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("found = 1", "1: found"),
        ("class Found: ...", "1: Found"),
        ("_KNOWN = 1", "1: _KNOWN"),
        ("if (_found := 1): ...", "1: _found"),
        ("for known in (): ...", "1: known"),
        ("x = [held for held in ()]", "1: held"),
        ("with open('') as wanted: ...", "1: wanted"),
        ("try: ...\nexcept OSError as told: ...", "2: told"),
        ("match 1:\n    case seen: ...", "2: seen"),
        ("from os import path as present", "1: present"),
        ("def f(*, former): ...", "1: former"),
        ("x = lambda found: 1", "1: found"),
        ("def known(): ...", "1: known"),
        ("class C:\n    seen: int", "2: seen"),
        ("self._seen = 1", "1: _seen"),
        ("_OWN = 1", "1: _OWN"),
        ("kept: int", "1: kept"),
        ('"""Somebody\'s."""', "1: Somebody"),
        ('x = 1\n"""For nobody else."""', "2: nobody"),
        ("x = 1  # noqa: BLE001 - whoever waits gets it", "1: whoever"),
    ],
)
def test_a_word_that_says_nothing_is_reported(text: str, word: str) -> None:
    assert _words(text) == [word]


def test_a_page_that_names_nobody_is_reported() -> None:
    assert _words_of_page('A program is named, not "somebody".\nSomebody else, or someone.') == [
        "2: Somebody",
        "2: someone",
    ]


def test_what_others_named_and_texts_for_users_are_passed_over() -> None:
    assert _words('f(wanted=x.known, present="nobody")\nfound_table = former_rows(seen)  # as found') == []
