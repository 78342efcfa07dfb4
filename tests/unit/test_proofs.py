"""The models of the protocol hold in all states, each guard is needed, and docs/proof.md has the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proofs.__main__ import main
from proofs.models import MODELS, rows

_DOCUMENT = (Path(__file__).parents[2] / "docs" / "proof.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_holds_and_needs_each_guard(name: str) -> None:
    whole, *without = rows(name)
    states = re.search("nothing, in ([0-9,]+) states", whole)
    assert states is not None
    for (guard, invariant), row in zip(MODELS[name].guards.items(), without, strict=True):
        assert f"| {guard} | {invariant} | " in row
    assert f"| `{name}` | {len(without)} | {states[1]} |" in _DOCUMENT


def test_how_a_model_breaks_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history"]) == 0
    printed = capsys.readouterr().out
    assert all(f"without: {guard}\nbreaks: I5\n  1. " in printed for guard in MODELS["history"].guards)
    assert main(["histories"]) == 2
