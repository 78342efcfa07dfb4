"""Fixtures of the ingest tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from tests.support.ingest_scene import IngestScene


@pytest.fixture
def scene(database: Database, warehouse: str, tmp_path: Path) -> IngestScene:
    """A table whose cut-line is 200, with 20 rows in the heap and none below."""
    return IngestScene.create(database, warehouse, tmp_path / "input")
