"""Without the extra `sql`, commands that use DuckDB say which extra they need."""

from __future__ import annotations

import sys

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.ops.duckdb_connection import open_duckdb


@pytest.mark.parametrize("missing", ["duckdb", "duckdb_extension_iceberg"])
def test_what_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match="is not installed") as caught:
        open_duckdb()
    assert "pip install 'mirror-pump[sql]'" in caught.value.remedy
