"""Fixtures of the retention tests."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.retention_sql import SqlTable


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """A mirror without tables, whose retention looks for work ten times a second."""
    return Mirror.create(database, warehouse, ThreadTaskRunner(2), retention_interval=0.1)


@pytest.fixture
def table(database: Database) -> SqlTable:
    """A table with heap retention and no pump."""
    return SqlTable(database)
