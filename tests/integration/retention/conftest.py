"""Fixtures of the retention tests."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """A mirror without tables, whose retention looks for work ten times a second."""
    return Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1)
