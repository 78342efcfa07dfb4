"""Each soak test is in one part of `make soak`, and each part has some."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soak_parts import OTHERS, PARTS, chosen_part, part_of

_TESTS = Path(__file__).parents[1]


def _soak_files() -> set[str]:
    return {
        path.relative_to(_TESTS).as_posix()
        for folder in ("acceptance", "integration")
        for path in (_TESTS / folder).rglob("test_*.py")
        if "mark.soak" in path.read_text(encoding="utf-8")
    }


def test_each_part_has_soak_tests_wherever_its_beginnings_lead() -> None:
    files = _soak_files()
    assert {part_of(file) for file in files} == {*PARTS, OTHERS}
    for part, beginnings in PARTS.items():
        for beginning in beginnings:
            assert any(part_of(file) == part and file.startswith(beginning) for file in files), (part, beginning)


def test_a_part_is_known_by_its_name() -> None:
    assert chosen_part("") is None
    assert {chosen_part(name) for name in PARTS} == set(PARTS)
    with pytest.raises(pytest.UsageError, match=r"'kill' is no part .*: further, kills, .*, others, rounds"):
        chosen_part("kill")
