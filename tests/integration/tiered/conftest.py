"""Fixtures of the tests of tiered tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirror_pump.testing.database import Database
from tests.support.tiered import TieredTables


@pytest.fixture
def tiered_tables(database: Database, warehouse: str) -> Iterator[TieredTables]:
    """Creates mirrors with a tiered table."""
    tables = TieredTables(database, warehouse)
    yield tables
    tables.close()
