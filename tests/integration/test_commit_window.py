"""The room that Spark's commits get beside a pump: as much as they need, and no more than half of the time."""

from __future__ import annotations

import threading
import time

from mirror_pump.ops.window import CommitWindow
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
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
        CommitWindow(database.dsn, mirror.settings.slot, committed.is_set, at_once=True, first=0.1),
    ):
        deadline = time.monotonic() + 60
        while max(waits, default=0.0) < 0.6 and time.monotonic() < deadline:
            began = time.monotonic()
            with pump.transaction():
                pump.execute(_LOCK, {"slot": mirror.settings.slot})
            waits.append(time.monotonic() - began)
        # Spark's commit came through, and it runs jobs again: nobody waits any more.
        committed.set()
        with pump.transaction():
            pump.execute(_LOCK, {"slot": mirror.settings.slot})
        began = time.monotonic()
        for _ in range(20):
            with pump.transaction():
                pump.execute(_LOCK, {"slot": mirror.settings.slot})
        assert time.monotonic() - began < 5
    tasks.close()
    held = [wait for wait in waits if wait > 0.05]
    assert max(waits) >= 0.6, "a window that was not enough is followed by one twice as long"
    assert len(waits) - len(held) > len(held), "and between any two of them publishes get through"
