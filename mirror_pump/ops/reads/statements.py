"""Splits SQL scripts into statements, at the semicolons where DuckDB's and Postgres's lexers end them, and statements
into what matters to a read."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    (?P<quoted>
        (?<!\w)[eE]'(?:[^'\\]|\\.|'')*'
      | '(?:[^']|'')*'
      | "(?:[^"]|"")*"
      | (?<![\w$])\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$
    )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<open> ['"] | /\* | (?<![\w$])\$(?:[A-Za-z_]\w*)?\$ )
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Matches quoted text and comments, in which a semicolon ends nothing, complete or (`open`) unterminated; and the
semicolon that ends a statement."""

_EXPLAIN = re.compile(r"\s*explain\b\s*(?:analyze\b\s*|\([^)]*\)\s*)*", re.IGNORECASE)

_LEADING = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)


def split(text: str) -> tuple[list[str], str]:
    """Return the statements that end with a semicolon, without the semicolon, and the text after the last one.

    Blanks and comments before each of them are removed. Empty statements are left out.
    """
    statements = []
    start = 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "open" or token["open"]:
            break
        if token["end"]:
            statements.append(_bare(text[start : token.start()]))
            start = token.end()
    return [statement for statement in statements if statement], _bare(text[start:])


def quoted_or_comment(statement: str) -> Iterator[re.Match[str]]:
    """Find the quoted texts, quoted names and comments of a statement, in order."""
    for token in _TOKEN.finditer(statement):
        if token["open"]:
            return
        if not token["end"]:
            yield token


def divided_explain(statement: str) -> tuple[str, str]:
    """Divide a statement into EXPLAIN, with what belongs to it, and the query after it. The first is empty without."""
    match = _EXPLAIN.match(statement)
    return ("", statement) if match is None else (match[0], statement[match.end() :])


def _bare(text: str) -> str:
    leading = _LEADING.match(text)
    assert leading is not None, "it matches the empty text"
    return text[leading.end() :].rstrip()
