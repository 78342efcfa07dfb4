"""A Spark of the pump's own has room for every task on this machine, unless the user says how many slots it has."""

from __future__ import annotations

import pytest

from mirror_pump.engine.spark_runtime.resident.task_pool import Capacity
from mirror_pump.engine.spark_runtime.runner import own_capacity, own_master


@pytest.mark.parametrize(
    ("master", "started", "capacity"),
    [
        ("local[*]", "local[256]", Capacity(256, 3, reserved=1)),
        ("local[*, 2]", "local[256, 2]", Capacity(256, 3, reserved=1)),
        ("local[4]", "local[4]", Capacity(4, 4, reserved=1)),
        ("local[4,3]", "local[4,3]", Capacity(4, 4, reserved=1)),
        ("local", "local", Capacity(1, 1, reserved=1)),
        ("spark://host:7077", "spark://host:7077", Capacity(32, 32, reserved=1)),
    ],
)
def test_slots_and_tasks(master: str, started: str, capacity: Capacity) -> None:
    assert (own_master(master), own_capacity(master, urgent=3)) == (started, capacity)
