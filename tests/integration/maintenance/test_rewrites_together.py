"""Rewrites of several tables that wait for the loop land in one publish."""

from __future__ import annotations

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner

_TABLES = 4


def test_rewrites_that_wait_are_one_publish(database: Database, warehouse: str) -> None:
    names = [f"public.t{number}" for number in range(_TABLES)]
    for name in names:
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT g, 'a' FROM generate_series(1, 50) g",
        )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    held: list[int] = []

    def hold(step: Step, _details: dict[str, object]) -> None:
        """Keeps the loop from going on after the batch of the updates until conversions wait for it."""
        received = (details["changes"] for step, details in steps.occurrences if step is Step.RECEIVED)
        if step is Step.ACKNOWLEDGED and any(received) and not held:
            held.append(len(steps.occurrences))
            await_true(lambda: steps.count(Step.POSITIONS_WRITTEN) >= _TABLES - 1, 60, "conversions are written")

    steps = Steps()
    with mirror.pumping(steps):
        mirror.register(*names)
        mirror.await_live(*names)
        steps.on = hold
        database.execute("; ".join(f"UPDATE {name} SET v = 'b' WHERE id % 2 = 0" for name in names))
        await_true(lambda: steps.count(Step.CONVERTED) >= _TABLES, 60, "conversions are published")
    later = [details["snapshots"] for step, details in steps.occurrences[held[0] :] if step is Step.PUBLISHED]
    assert max(map(int, map(str, later))) >= _TABLES - 2
    mirror.catch_up()
    mirror.assert_equal(*names)
