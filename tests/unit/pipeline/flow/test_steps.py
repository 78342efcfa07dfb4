from __future__ import annotations

from typing import Any

import pytest

from mirror_pump.pipeline.flow.steps import Level, Step

_NEWS = {
    "retention-stopped": "error",
    "table-failed": "error",
    "retention-refused": "warning",
    "index-failed": "warning",
    "table-changed": "warning",
    "table-copied-again": "warning",
    "retrying": "warning",
}


def test_what_an_operator_has_to_know_is_no_debug_line() -> None:
    assert {name: Step(name).level.value for name in _NEWS} == _NEWS


def test_warnings_and_errors_say_what_to_do() -> None:
    assert {step for step in Step if step.remedy} == {
        step for step in Step if step.level in (Level.WARNING, Level.ERROR)
    }


@pytest.mark.parametrize("arguments", [(), (Level.ERROR,), (Level.DEBUG, "Look at it.")])
def test_a_step_without_a_level_or_a_remedy_cannot_be_defined(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        Step.__new_member__(Step, "new", *arguments)  # type: ignore[attr-defined]  # what the enum makes members by
