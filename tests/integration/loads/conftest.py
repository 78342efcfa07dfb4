"""Fixtures of the tests of labelled loads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirror_pump.testing.database import Database
from tests.support.loads import LoadedTable, Loader, new_loader


@pytest.fixture
def table(database: Database) -> LoadedTable:
    """A table with heap retention and no pump, of which the first partition has left the heap."""
    return LoadedTable(database)


@pytest.fixture
def loader(table: LoadedTable) -> Iterator[Loader]:
    """A role that may use schema modak."""
    with new_loader(table.database) as role:
        yield role
