"""Random transactions and faults: at every published F, heap and lake hold the same."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.acceptance.machine import MirrorMachine

EXAMPLES = 25
"""Mirrors per run: about 70 s on two cores. `make soak` goes on for as long as it is told."""

STEPS = 20


def test_at_every_published_frontier_the_lake_is_the_heap(postgres: EmbeddedPostgres) -> None:
    MirrorMachine.server = postgres
    MirrorMachine.published = 0
    run_state_machine_as_test(
        MirrorMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            # The pump runs at its own pace, so a smaller example need not fail: what failed is reported as it was.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
    assert MirrorMachine.published > 20 * EXAMPLES
