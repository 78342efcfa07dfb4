"""Features that are not requested from servers that do not have them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import sql

from mirror_pump.source.stream.slot import create_publication, sends_generated


@pytest.mark.parametrize(("version", "published"), [(150018, False), (170006, False), (180000, True)])
def test_generated_columns_are_published_from_18_on(version: int, published: bool) -> None:
    asked: list[Any] = []

    def execute(query: Any, *_: object) -> Any:
        asked.append(query)
        return SimpleNamespace(fetchone=lambda: None)

    server: Any = SimpleNamespace(info=SimpleNamespace(server_version=version), execute=execute)
    assert create_publication(server, "p")
    assert isinstance(asked[-1], sql.Composed)
    assert ("publish_generated_columns" in asked[-1].as_string()) is published
    assert sends_generated(server, None) is published
    asked.clear()
    assert not sends_generated(server, "gone")
    assert bool(asked) is published, "before 18 there is nothing to look up"
