"""A mirrored table with a change feed whose rows a test has made up."""

from __future__ import annotations

import random

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.made_feeds import TABLE, MadeFeed


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror of the table `orders`."""
    database.execute(TABLE)
    made = Mirror.create(database, warehouse, tasks)
    made.register("orders")
    made.catch_up()
    return made


@pytest.fixture
def feed(mirror: Mirror) -> MadeFeed:
    """Its feed: files of a merge, and newer ones."""
    chance = random.Random(random.random())
    made = MadeFeed(mirror, "orders", chance)
    for _ in range(4):
        made.change(chance.randint(5, 60))
    made.merge()
    for _ in range(3):
        made.change(chance.randint(1, 40))
    return made
