"""MERGE PARTITIONS (PostgreSQL 19) of a tiered table. Before 19 its statements are run one by one."""

from __future__ import annotations

import pytest

from mirror_pump.testing.mirror import await_true
from tests.support.divided_partitions import NewPartition, rearrange
from tests.support.events_table import EventsTable
from tests.support.tiered import TieredTables


def _in_both(events: EventsTable, change: str) -> None:
    with events.database.session(autocommit=False) as connection:
        for table in (events.name, events.model):
            connection.execute(change.format(table).encode())


def test_partitions_above_the_cutline_are_followed(tiered_tables: TieredTables) -> None:
    """The lake has none of their rows. What they were merged into leaves the heap in its turn."""
    events = tiered_tables.tiered(partitions=5, rows=10, lag="200")
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        assert events.cut == 200
        rearrange(events.database, "events", ["p2", "p3"], [NewPartition("p23", 200, 400)])
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at >= 200")
        with events.database.connect() as connection:
            events.make_partition(connection, 6)
        _in_both(events, "INSERT INTO {} VALUES (650, 9, 9, 'newest')")
        events.await_state(p23="dropped")
        assert events.cut == 400
        events.assert_exact()


@pytest.mark.further
def test_a_partition_across_the_cutline_stops_retention(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=5, rows=10, lag="200", keep_heap=True)
    with events.mirror.pumping():
        await_true(lambda: events.cut == 200, 30, "the cut-line moves")
        rearrange(events.database, "events", ["p1", "p2"], [NewPartition("p12", 100, 300)])
        stopped = "SELECT retention_stopped FROM modak.status"
        await_true(lambda: events.database.rows(stopped) != [(None,)], 30, "retention stops")
        assert "public.p12 lies on both sides of the cut-line" in str(events.database.rows(stopped))
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at >= 200")
        events.assert_exact()
