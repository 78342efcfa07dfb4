"""Without the extra `sql`, a query says which one it needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirror_pump.config import Settings
from mirror_pump.errors import UsageError
from mirror_pump.ops.query import Query, run_query


@pytest.mark.parametrize("missing", ["duckdb", "duckdb_extension_iceberg"])
def test_what_is_not_installed_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match="DuckDB is not installed") as caught:
        run_query(Settings(), Query("SELECT 1"), "csv", tmp_path / "result.csv", lambda _: None)
    assert "pip install 'mirror-pump[sql]'" in caught.value.remedy
