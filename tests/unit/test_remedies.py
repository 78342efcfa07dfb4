"""Commands in what the program tells its users work when they are pasted: they have the program's name, a command that
there is, with options that it has, and a table or what stands for one."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from mirror_pump.cli.main import MODULES, app
from mirror_pump.runtime.telemetry import redact

_ROOT = Path(__file__).parents[2]
_GROUP: Any = get_command(app)
_VALUE = "NAME"
"""What stands for a value that a text is given."""
_TAKE_TABLES = {"register": ("tables", "every"), "unregister": ("tables", "show"), "resync": ("tables", "every")}
"""Commands, and parameters of which one has to be given though no parser says so."""
_COMMAND = re.compile(rf"(?:{'|'.join(MODULES)}) |--")
"""How a command begins that has lost the name of the program."""
_PASTED = re.compile(rf"mirror-pump (?P<command>{'|'.join(MODULES)})\b(?P<rest>[^`\n;:,.()]*)")
_BEGUN = re.compile(rf"mirror-pump (?:{'|'.join(MODULES)}) [^`;:,.()]*$")
_WORD = re.compile(
    r"--?[a-z][a-z-]*(?:=\S+)?|[A-Z][A-Z_]*|\"[^\"]*\"|get|set|unset|keep|check|drop|list|add|test|set-default|tiered"
)
"""What belongs to a command that has no quotes, in which a sentence may go on behind it."""
_EXAMPLES = {"ENGINE": "duckdb"}
"""Values for what stands for one of a few."""
_DOCUMENTS = ("config.py", "limits.py", "policy.py", "reference.py")
"""Modules of mirror_pump/settings that are pages of the documentation: they name commands."""
_SAFE = {
    "moments[0]": "of moments, whose names need no quotes",
    "self.wish.name": "of a moment",
    "self._wish.name": "of a moment",
    "options": "options, with values that need no quotes",
    "name": "of a moment, or in quotes for a shell already",
    "table_name": "in quotes for a shell already",
    "wish.format_version": "a number",
    "version": "a number",
    "key": "of a policy",
    "mode": "an option",
    "back": "an option",
    "choices": "options, with quotes where they need them",
    "wish.feed.mode": "one of two words",
    "format_lsn(when.frontier)": "a position",
}
"""Values in commands that no quotes are put around."""


class Text(NamedTuple):
    """A text of the program, with its place."""

    text: str
    place: str


def _flat(node: ast.expr) -> str | None:
    """The text of an expression, with _VALUE for what it is given; None if it is no text."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_flat(value) or _VALUE for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = _flat(left), _flat(right)
            return None if parts == (None, None) else "".join(part or _VALUE for part in parts)
    return None


def _expressions() -> Iterator[tuple[Path, ast.expr]]:
    """All expressions but documentation of the code, the outer ones first."""
    for path in sorted((_ROOT / "mirror_pump").rglob("*.py")):
        if path.is_relative_to(_ROOT / "mirror_pump" / "testing") or path.name in _DOCUMENTS:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {node.value for node in nodes if isinstance(node, ast.Expr)}
        yield from ((path, node) for node in nodes if isinstance(node, ast.expr) and node not in documentation)


@cache
def _texts() -> tuple[Text, ...]:
    """All texts of the program. Not made when the module is imported: each process that collects tests imports it."""
    parts: set[ast.AST] = set()
    texts = []
    for path, node in _expressions():
        text = None if node in parts else _flat(node)
        if text is not None:
            parts.update(ast.walk(node))
            texts.append(Text(text, f"{path.relative_to(_ROOT)}:{node.lineno}"))
    return tuple(texts)


def _refusal(pasted: re.Match[str], *, quoted: bool) -> str:
    """Why a command cannot be run; empty if it can."""
    name, command = pasted["command"], _GROUP.commands[pasted["command"]]
    words = shlex.split(pasted["rest"]) if quoted else _leading_words(pasted["rest"])
    if not quoted and not words:
        # The name of a command, in a sentence.
        return ""
    words = [
        "2" if before == "--format-version" else _EXAMPLES.get(word, word)
        for before, word in zip(("", *words), words, strict=False)
    ]
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return f"{name} has no command {' '.join(words[:1])}"
        command = command.commands[words.pop(0)]
    try:
        given = command.make_context(name, words).params
    except Exception as error:  # noqa: BLE001 - typer has errors of click's kinds, not of its classes
        return f"{type(error).__name__} {error}"
    needs_one = _TAKE_TABLES.get(name)
    return "" if needs_one is None or any(map(given.get, needs_one)) else "names no TABLE"


def _leading_words(rest: str) -> list[str]:
    return list(takewhile(_WORD.fullmatch, rest.split()))


def test_commands_have_the_name_of_the_program() -> None:
    wrong = [
        f"{text.place}: `{quoted}`"
        for text in _texts()
        for quoted in re.findall(r"`([^`\n]*)`", text.text)
        if _COMMAND.match(quoted)
    ]
    assert not wrong, "\n".join(wrong)


def test_commands_can_be_run() -> None:
    commands, wrong = 0, []
    for text in _texts():
        for number, part in enumerate(text.text.split("`")):
            for pasted in _PASTED.finditer(part):
                commands += 1
                why = _refusal(pasted, quoted=number % 2 == 1)
                if why:
                    wrong.append(f"{text.place}: {pasted[0]}: {why}")
    assert commands > 200, "the texts are not found any more"
    assert not wrong, "\n".join(wrong)


def test_names_in_commands_are_quoted_for_a_shell() -> None:
    """A name may have blanks and double quotes, which are part of it."""
    wrong = []
    for path, node in _expressions():
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = ast.unparse(part.value)
                if _BEGUN.search(before) and not (
                    value in _SAFE or value.isupper() or value.endswith(".shell") or value.startswith("shlex.quote(")
                ):
                    wrong.append(f"{path.relative_to(_ROOT)}:{node.lineno}: {value}")
                before += _VALUE
            else:
                before += _flat(part) or ""
    assert not wrong, "\n".join(wrong)


def test_nothing_that_the_program_says_looks_like_a_secret() -> None:
    """What looks like one is taken out of errors and log lines."""
    wrong = [f"{text.place}: {redact(text.text)}" for text in _texts() if redact(text.text) != text.text]
    assert not wrong, "\n".join(wrong)
