"""What a server says depends on its language: no program text compares it with English words."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "mirror_pump"
_COMPARED = re.compile(
    r"""["'][^"'\n]*[a-z]{3}[^"'\n]*["']\s+(?:not\s+)?in\s+(?:str\(error\)|detail|context|\w+\.diag\.\w+|\w+\.(?:text|primary|context))"""
    r"""|(?:str\(error\)|\bdetail|\w+\.diag\.\w+)\.(?:startswith|endswith|find|index)\("""
)


def test_errors_are_not_recognised_by_words() -> None:
    """Use the SQLSTATE (psycopg.errors has a class for each), or another field of the protocol."""
    compared = [
        f"{path.relative_to(_PACKAGE)}: {match[0]}"
        for path in sorted(_PACKAGE.rglob("*.py"))
        for match in _COMPARED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert compared == []


def test_the_pattern_finds_such_a_comparison() -> None:
    for line in ('"does not exist" in detail', "'no partition' in str(error)", 'str(error).startswith("FATAL")'):
        assert _COMPARED.search(line), line
