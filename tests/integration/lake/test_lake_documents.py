"""Every Python block of docs/lake runs, in its document's order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

_DOCUMENTS = Path(__file__).parents[3] / "docs" / "lake"
_OWN = ("catalog-choice", "retry-policy", "metadata-layout", "row-deletes")


@pytest.mark.parametrize("name", _OWN)
def test_the_code_of_the_document_runs(name: str, tmp_path: Path, warehouse: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (_DOCUMENTS / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    given: dict[str, Any] = {"directory": tmp_path, "warehouse": warehouse}
    for block in blocks:
        exec(compile(block, name, "exec"), given)
