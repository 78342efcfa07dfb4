"""The pause that a pump makes for Spark's commits: as long as they need, but at most half of the time."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg

from mirror_pump.model import TableName
from mirror_pump.ops.maintenance.commit_pause import CommitPause
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import queries

_LOCK = queries("publish")["lock_slot"]


def test_a_window_grows_until_it_is_enough_and_publishes_come_in_between(database: Database, warehouse: str) -> None:
    tasks = ThreadTaskRunner()
    mirror = Mirror.create(database, warehouse, tasks)
    committed = threading.Event()
    waits: list[float] = []
    with (
        mirror.database.connect() as pump,
        CommitPause(
            database.dsn,
            mirror.settings.slot,
            TableName("public", "t"),
            committed.is_set,
            at_once=True,
            first_pause=0.1,
        ),
    ):
        deadline = time.monotonic() + 60
        while max(waits, default=0.0) < 0.6 and time.monotonic() < deadline:
            began = time.monotonic()
            _publish(pump, mirror)
            waits.append(time.monotonic() - began)
        # Spark's commit succeeded, and Spark runs jobs again, so nobody waits any more.
        committed.set()
        _publish(pump, mirror)
        began = time.monotonic()
        for _ in range(20):
            _publish(pump, mirror)
        assert time.monotonic() - began < 5
    tasks.close()
    held = [wait for wait in waits if wait > 0.05]
    assert max(waits) >= 0.6, "a window that was not enough is followed by one twice as long"
    assert len(waits) - len(held) > len(held), "and between any two of them publishes get through"


def test_a_window_ends_with_the_commit_that_it_is_for(database: Database, warehouse: str) -> None:
    """Spark goes on without a job for a while, for example while it deletes files. Publishes do not wait for that."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tasks = ThreadTaskRunner()
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    mirror.catch_up()
    with (
        mirror.database.connect() as pump,
        CommitPause(
            database.dsn, mirror.settings.slot, TableName("public", "t"), lambda: False, at_once=True, first_pause=30
        ),
    ):
        await_true(lambda: _waits(pump, mirror), 20, "publishes wait")
        assert _waits(pump, mirror)
        database.execute("UPDATE modak.iceberg_tables SET metadata_location = metadata_location || '.another'")
        began = time.monotonic()
        for _ in range(20):
            _publish(pump, mirror)
        assert time.monotonic() - began < 10
    tasks.close()


def _publish(pump: psycopg.Connection[Any], mirror: Mirror) -> None:
    """The first statement of a publish."""
    with pump.transaction():
        pump.execute(_LOCK, {"slot": mirror.settings.slot})


def _waits(pump: psycopg.Connection[Any], mirror: Mirror) -> bool:
    """Whether a publish would have to wait now."""
    with pump.transaction():
        pump.execute("SET LOCAL lock_timeout = '100ms'")
        try:
            with pump.transaction():
                pump.execute(_LOCK, {"slot": mirror.settings.slot})
        except psycopg.errors.LockNotAvailable:
            return True
    return False
