"""Where a statement ends."""

from __future__ import annotations

import pytest

from mirror_pump.ops.reads.statements import split


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1;", ["SELECT 1"], ""),
        (" SELECT 1 ; ; SELECT\n2;\n", ["SELECT 1", "SELECT\n2"], ""),
        ("SELECT ';' ; SELECT 'it''s;", ["SELECT ';'"], "SELECT 'it''s;"),
        ('SELECT 1 AS "a;""b"; SELECT 2 AS "c;', ['SELECT 1 AS "a;""b"'], 'SELECT 2 AS "c;'),
        (r"SELECT E'\';'; SELECT e'\\';", [r"SELECT E'\';'", r"SELECT e'\\'"], ""),
        (r"SELECT '\'; SELECT name'';", [r"SELECT '\'", "SELECT name''"], ""),
        ("-- first; of all\nSELECT 1 -- not; yet\n; -- last;\n", ["SELECT 1 -- not; yet"], ""),
        ("/* a; */ SELECT /* b; */ 1; /* c; */ SELECT 2 /* d;", ["SELECT /* b; */ 1"], "SELECT 2 /* d;"),
        ("SELECT $$;$$; SELECT $a$ $$; $a$; SELECT $b$;$$", ["SELECT $$;$$", "SELECT $a$ $$; $a$"], "SELECT $b$;$$"),
        ("SELECT a$b$; SELECT $1;", ["SELECT a$b$", "SELECT $1"], ""),
        ("-- nothing", [], ""),
    ],
)
def test_semicolons_inside_literals_and_comments_end_no_statement(text: str, complete: list[str], rest: str) -> None:
    assert split(text) == (complete, rest)
