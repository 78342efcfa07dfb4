"""Random transactions and faults: at every published frontier, heap and lake hold the same rows."""

from __future__ import annotations

import random
import time

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.mirror_state_machine import MirrorMachine

SECONDS = 4.0
"""New rounds begin until then: one mirror or two on two idle cores. `make soak` runs for much longer."""

EXAMPLES = 1
"""Mirrors per round."""

STEPS = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_at_every_published_frontier_the_lake_is_the_heap(
    postgres: EmbeddedPostgres, pytestconfig: pytest.Config
) -> None:
    # Rounds rather than one large run: a slow machine does fewer of them, and takes no longer.
    seeds = random.Random(pytestconfig.getoption("--hypothesis-seed"))
    MirrorMachine.server = postgres
    MirrorMachine.published = MirrorMachine.conversions = MirrorMachine.merges = MirrorMachine.indexed = 0
    MirrorMachine.upgrades = 0
    deadline = time.monotonic() + SECONDS
    rounds = 0

    def enough() -> bool:
        kinds = (MirrorMachine.conversions, MirrorMachine.indexed, MirrorMachine.merges, MirrorMachine.upgrades)
        return MirrorMachine.published > 20 * EXAMPLES and min(kinds) > 0

    # On a slow machine, a single round may have been too short for merges.
    while rounds == 0 or time.monotonic() < deadline or (not enough() and time.monotonic() < deadline + 300):
        rounds += 1
        seed = seeds.randrange(2**32)
        print(f"round {rounds}, seed {seed}")
        run_state_machine_as_test(
            hypothesis.seed(seed)(MirrorMachine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                # The pump runs at its own pace, so a smaller example need not fail: the failing example is reported
                # unchanged.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
                print_blob=True,
            ),
        )
    counts = (MirrorMachine.published, MirrorMachine.conversions, MirrorMachine.indexed, MirrorMachine.merges)
    upgrades = MirrorMachine.upgrades
    assert enough(), f"published, conversions, indexed, merges, upgrades in {rounds} rounds: {(*counts, upgrades)}"
