"""What `make audit` makes of the answers of pip-audit, which no test machine need have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bare_machine.audit import audit

_CLEAN = {"name": "a", "version": "1", "vulns": []}
_SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
_HOLE = {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"], "aliases": []}]}


@pytest.mark.parametrize(
    ("pypi", "osv", "fine", "text"),
    [
        ([_CLEAN], None, True, "no known vulnerability in 1 packages, says pypi"),
        ([_CLEAN, _HOLE], None, False, "c 1: PYSEC-1, fixed in 2"),
        ([_CLEAN, _SKIPPED], [_CLEAN, _CLEAN], True, "no known vulnerability in 2 packages, says osv"),
        # An index without an answer is not one that says that all is well.
        ([_SKIPPED], None, True, "no answer about 1 packages of dev.txt: b ..."),
        ([_SKIPPED], [_HOLE], False, "c 1: PYSEC-1, fixed in 2"),
        (None, None, True, "no service could be reached"),
    ],
)
def test_answers(pypi: list[Any] | None, osv: list[Any] | None, fine: bool, text: str) -> None:
    def run(command: Sequence[str]) -> str:
        answer = pypi if command[command.index("--vulnerability-service") + 1] == "pypi" else osv
        return "" if answer is None else json.dumps({"dependencies": answer, "fixes": []})

    result, said = audit(run, "uv", Path("dev.txt"))
    assert (result, text in said) == (fine, True), said
