"""Reads lake tables by ClickHouse, in the process."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.engines import CHDB


def clickhouse_rows(
    location: str, columns: str, monkeypatch: pytest.MonkeyPatch, *, search: bool = False, condition: str = "1"
) -> list[tuple[Any, ...]]:
    """The rows of the table with this metadata file, sorted: integers `at` and `id`, then others. `search`: of the
    newest file that ClickHouse finds by itself. It reads only local files below the working directory."""
    monkeypatch.syspath_prepend(str(CHDB))
    chdb = importlib.import_module("chdb")
    directory, kind, name = location.removeprefix("file://").rsplit("/", 2)
    named = "" if search else f", SETTINGS iceberg_metadata_file_path = '{kind}/{name}'"
    query = f"SELECT {columns} FROM icebergLocal('{directory}'{named}) WHERE {condition}"
    rows = [json.loads(line) for line in bytes(chdb.query(query, "JSONCompactEachRow").bytes()).splitlines()]
    return sorted((int(at), int(key), *others) for at, key, *others in rows)


@contextmanager
def clickhouse_session(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session in which these statements have made the database `lake`. It reads only local files below the working
    directory."""
    monkeypatch.syspath_prepend(str(CHDB))
    session = importlib.import_module("chdb.session").Session()
    for statement in settings:
        session.query(statement)
    yield session
    session.query("DROP DATABASE lake")
    session.close()
