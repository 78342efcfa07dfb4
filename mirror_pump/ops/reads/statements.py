"""Scripts as statements: where each one ends, as DuckDB's and Postgres's lexers see it."""

from __future__ import annotations

import re

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
"""What may hold a semicolon that ends nothing, whole or (`open`) without its end; and the semicolon that ends one."""

_LEADING = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)


def split(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, without it, and what comes after the last one.

    Neither has blanks or comments before it; empty statements are left out.
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


def _bare(text: str) -> str:
    leading = _LEADING.match(text)
    assert leading is not None, "it matches the empty text"
    return text[leading.end() :].rstrip()
