"""DuckDB does not check the signatures of its extensions each time that a test opens it.

They come from packages, as all other code does. A check hashes 63 MB: 0.4 s of CPU, twenty times what else it takes to
open a DuckDB, and each query of a test opens one. Programs that tests start as processes do check.
"""

from __future__ import annotations

from typing import Any

import duckdb

_connect = duckdb.connect


def trust_extensions() -> None:
    """Makes every DuckDB that this process opens from now on trust them."""
    duckdb.connect = _trusting


def _trusting(*arguments: Any, config: dict[str, Any] | None = None, **options: Any) -> duckdb.DuckDBPyConnection:
    return _connect(*arguments, config={**(config or {}), "allow_unsigned_extensions": "true"}, **options)
