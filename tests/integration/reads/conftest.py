"""Fixtures of the tests of reads."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.typed_events import TypedEvents


@pytest.fixture
def events(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> TypedEvents:
    """The cut-line is 200: partition 0 is dropped, partition 1 is sealed, 2 and 3 are hot."""
    events = TypedEvents.create(Mirror.create(database, warehouse, tasks), 4)
    events.insert(*((at, at) for at in range(0, 400, 10)))
    events.move_cutline()
    return events
