"""Tables take turns: one whose partitions are always due keeps no other table waiting."""

from __future__ import annotations

import pytest

from mirror_pump.model import TableId
from mirror_pump.ops.retain.retention import change_retention
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.retention.next_step import Turns
from mirror_pump.testing.mirror import Steps
from tests.support.events_table import EventsTable
from tests.support.tiered import TieredTables, tiered

pytestmark = pytest.mark.further


def test_the_table_whose_turn_it_was_comes_last() -> None:
    turns, (a, b, c) = Turns(), (TableId(3), TableId(5), TableId(9))
    assert turns.order((a, b, c)) == (a, b, c)
    turns.begin(b)
    assert turns.order((a, b, c)) == (c, a, b)
    assert turns.order((a, c)) == (c, a), "it has ended"
    turns.begin(c)
    assert turns.order((a, b, c)) == (a, b, c)


@pytest.mark.further
def test_a_table_that_ends_each_session_keeps_no_other_table_waiting(tiered_tables: TieredTables) -> None:
    """Each time its cut-line advances, a table with a stream ends the pump's session. The next session gives the other
    tables their turn first."""
    busy = tiered_tables.automatic(partitions=12, rows=4, lag="100000")
    mirror = busy.mirror
    mirror.catch_up()
    quiet = EventsTable.automatic(mirror, 5, 4, lag=None, name="quiet", model="quiet_model", prefix="q")
    mirror.register("public.quiet", retention=tiered())
    assert busy.table_id < quiet.table_id, "the former has the first turn"
    change_retention(mirror.settings, "events", "heap_retention", "100")
    steps = Steps()
    with mirror.pumping(steps):
        quiet.await_state(q0="dropped", q1="dropped", q2="dropped")
        busy.await_state(p9="dropped")
        busy.assert_exact()
        quiet.assert_exact()
    advances = steps.details(Step.TIER_ADVANCED, "table")
    last = max(number for number, table in enumerate(advances) if table == "public.quiet")
    # Each partition of the quiet table is sealed, copied, and passed: a few turns each.
    assert advances[last:].count("public.events") >= 3, advances
