"""Declarations and configuration files that a stranger wrote are refused with their place, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.cli.commands.apply import read_declaration
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import load_settings

_ENTRY = '[[register]]\ntables = ["public.t"]\n'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "{b = " * 5000, "nested too deeply"),
        ('[[register]]\ntables = ["public.t\\u0000"]', "entry 1: tables: the character NUL"),
        (_ENTRY + "where = \"v = '\\u0000'\"", "entry 1: where: the character NUL"),
        (_ENTRY + "where = 1", "entry 1: where"),
        (_ENTRY + 'where = ["id > 0"]', "entry 1: where"),
        ("\0", "cannot be read"),
        ("register = 1", "more than"),
        ("register = [1]", "more than"),
    ],
)
def test_what_is_no_declaration_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(content)
    with pytest.raises(UsageError) as refused:
        read_declaration(path)
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_configuration_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mirror-pump.toml"
    path.write_text("dsn = " + "[" * 5000)
    with pytest.raises(UsageError, match="nested too deeply"):
        load_settings(config=path)
