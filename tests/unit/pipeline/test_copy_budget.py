"""The bytes per second of copies: how long a chunk waits for those before it."""

from __future__ import annotations

from mirror_pump.pipeline.copy.copy_budget import CopyBudget


class BudgetClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_chunk_waits_until_those_before_it_are_paid_for() -> None:
    clock = BudgetClock()
    budget = CopyBudget(10, clock)
    assert budget.wait_seconds() == 0, "the first one does not wait"
    budget.spend(50)
    budget.spend(30)
    assert budget.wait_seconds() == 8
    clock.now += 3
    assert budget.wait_seconds() == 5
    clock.now += 5
    assert budget.wait_seconds() == 0


def test_the_time_of_the_reading_counts() -> None:
    clock = BudgetClock()
    budget = CopyBudget(10, clock)
    assert budget.wait_seconds() == 0
    clock.now += 4
    budget.spend(50)
    assert budget.wait_seconds() == 1


def test_idle_time_earns_nothing() -> None:
    clock = BudgetClock()
    budget = CopyBudget(10, clock)
    clock.now += 1000
    assert budget.wait_seconds() == 0
    budget.spend(50)
    assert budget.wait_seconds() == 5


def test_without_a_limit_nothing_waits() -> None:
    budget = CopyBudget(0, BudgetClock())
    budget.spend(10**12)
    assert budget.wait_seconds() == 0
