"""Each place that opens a connection to PostgreSQL, or prints how to, gives it a search_path from its first message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.database.startup_options import option_values
from mirror_pump.source.connect import PINNED_SETTINGS

_PACKAGE = Path(__file__).parents[2] / "mirror_pump"
_OPENS = re.compile(
    r"\bpsycopg\.(?:Async)?(?:connect|Connection\.connect)\(|\bPGconn\.connect|\bConnectionPool\(|\bcreate_engine\("
    r"|(?<!def )\bopen_(?:connection|session|settled)\(|\badbc\w*\.connect\(|\bAdbcDatabase\(|set_options\(uri"
    r"|jdbc:postgresql|postgresql\+psycopg"
)
"""What opens a connection, or is a part of how another program will."""
_PINS = re.compile(r"\b(?:_conninfo|adbc_uri)\(|\bPINNED_PATH\b|\bcatalog_path\b")
_GIVEN = {
    "source/heap/block_reader.py:_types_of": "its callers have the URI from adbc_uri()",
    "database/session_settings.py:open_session": "its callers have the path in their connection string",
    "database/session_settings.py:open_settled": "the same",
    "database/opening.py:open_connection": "the same",
    "database/poolers.py:_version": "asks a pooler, by the options of the connection that it spoils",
}


def _functions() -> Iterator[tuple[str, str]]:
    """Name and source of each function of the modules that open connections, and of what is outside of all functions of
    such a module. Those of `testing` play the user."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        where = path.relative_to(_PACKAGE).as_posix()
        if where.startswith("testing/"):
            continue
        text = path.read_text(encoding="utf-8")
        if not _OPENS.search(text):
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where}:{node.name}", "\n".join(lines[node.lineno - 1 : node.end_lineno])
                lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
        yield where, "\n".join(lines)


def test_every_connection_has_the_path() -> None:
    opening = {name: text for name, text in _functions() if _OPENS.search(text)}
    assert len(opening) >= 8, "the pattern finds no connections any more"
    assert {name for name, text in opening.items() if not _PINS.search(text)} == set(_GIVEN)


def test_other_drivers_are_not_used() -> None:
    """Whose connections the pattern would not find."""
    imported = re.compile(r"^\s*(?:import|from) (?:asyncpg|psycopg2|pg8000|sqlalchemy|psycopg_pool)\b", re.MULTILINE)
    assert [path for path in _PACKAGE.rglob("*.py") if imported.search(path.read_text(encoding="utf-8"))] == []


def test_the_path_is_the_catalog_alone() -> None:
    """Named last, temporary objects hide nothing."""
    assert PINNED_SETTINGS["search_path"] == "pg_catalog,pg_temp"


def test_options_are_read_as_the_server_reads_them() -> None:
    options = (
        r"-c a=1 -c search_path=x\,\ \\y --search-path=z -csearch_path= -c work_mem=search_path=no -c Search_Path=q=r"
    )
    assert option_values(options, "search_path") == [r"x, \y", "z", "", "q=r"]
    assert option_values("", "search_path") == option_values("-c", "search_path") == []
