"""The commands of the README's code blocks, and their output."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def shell_lines(section: str) -> list[str]:
    """The lines of all blocks of shell commands in a section, named by its heading, in the order in which a reader
    pastes them."""
    return [line for block in _blocks(section, "sh") for line in block.splitlines() if line.strip()]


def printed_lines(section: str) -> list[str]:
    """The lines that the section's commands print. Numbers are examples; `...` stands for anything."""
    return [line for block in _blocks(section, "text") for line in block.splitlines() if line.strip()]


def is_printed(expected: str, output: str) -> bool:
    """Whether a line of `output` is the expected one, apart from its numbers, sizes and spaces."""
    pattern = "".join(_piece(piece) for piece in re.split(f"({_EXAMPLE})", expected.rstrip()))
    return re.search(rf"^{pattern}\s*$", output, re.MULTILINE) is not None


_EXAMPLE = r"\.\.\.|[0-9A-F]+/[0-9A-F]+|\d[\d.,]*(?: (?:B|[KMG]iB|m?s)(?!\w))?| +"
"""What may differ from the README: an omission, a WAL position, a number with its unit, white space."""


def _piece(piece: str) -> str:
    if piece == "...":
        return ".*"
    if re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", piece):
        return "[0-9A-F]+/[0-9A-F]+"
    if re.fullmatch(_EXAMPLE, piece):
        return " +" if piece.isspace() else r"\d[\d.,]*(?: (?:B|[KMG]iB|m?s))?"
    return re.escape(piece)


def _blocks(section: str, language: str) -> list[str]:
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", README.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
