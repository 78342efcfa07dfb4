"""MERGE PARTITIONS and SPLIT PARTITION (PostgreSQL 19) of mirrored tables, with heap retention and without.

Before 19 the statements that they consist of are run in one transaction, whether or not the stream gets the moved rows.
"""

from __future__ import annotations

import pytest

from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.divided_partitions import NewPartition, rearrange
from tests.support.events_table import EventsTable, RetentionTables


def _await_stop(events: EventsTable, partition: str) -> None:
    stopped = "SELECT retention_stopped FROM modak.status"
    await_true(lambda: events.database.rows(stopped) != [(None,)], 30, "retention stops")
    assert f"public.{partition} lies on both sides of the cut-line" in str(events.database.rows(stopped))


both_ways = pytest.mark.parametrize("decoded", [False, True], ids=["moved unseen", "moved by INSERTs"])


def _in_both(events: EventsTable, change: str) -> None:
    """The change of `{}` in one transaction: of the table and its model."""
    with events.database.session(autocommit=False) as connection:
        for table in (events.name, events.model):
            connection.execute(change.format(table).encode())


def _await_failure(events: EventsTable) -> None:
    """Of a table whose rows were moved unseen: a copy would take what the lake alone may have."""
    await_true(lambda: events.mirror.state("public.events") == "failed", 30, "the table fails")
    assert "so it has to be copied again; but of partition" in events.mirror.error("public.events")


@pytest.mark.parametrize(
    "decoded", [False, pytest.param(True, marks=pytest.mark.further)], ids=["moved unseen", "moved by INSERTs"]
)
def test_without_retention_a_table_is_as_in_the_heap(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, *, decoded: bool
) -> None:
    events = EventsTable(database, 4, mirror=Mirror.create(database, warehouse, tasks))
    mirror = events.mirror
    events.create_tables("at bigint, id bigint, n int, v text, PRIMARY KEY (at, id)", default=True)
    database.execute("INSERT INTO events SELECT g, g, 0, 'first' FROM generate_series(0, 399, 5) g")
    mirror.register("public.events")
    with mirror.pumping():
        mirror.await_live("public.events")
        rearrange(database, "events", ["p0", "p1"], [NewPartition("p01", 0, 200)], decoded=decoded)
        database.execute("UPDATE events SET v = 'merged' WHERE at < 150", "DELETE FROM events WHERE at = 5")
        rearrange(
            database, "events", ["p3"], [NewPartition("a", 300, 350), NewPartition("b", 350, 400)], decoded=decoded
        )
        database.execute("UPDATE events SET v = 'split' WHERE at > 320", "INSERT INTO events VALUES (351, 1, 1, 'new')")
        mirror.await_frontier()
        mirror.await_live("public.events")
        mirror.await_frontier()
        mirror.assert_equal("public.events")


@both_ways
def test_partitions_above_the_cutline(retention_tables: RetentionTables, *, decoded: bool) -> None:
    """The lake keeps the rows of partitions that go. Rows that come by INSERTs replace them. If they do not come, the
    table fails, and no row is lost or doubled."""
    events = retention_tables.automatic(partitions=6, rows=10, lag="200")
    events.mirror.catch_up()
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped", p2="dropped")
        rearrange(events.database, "events", ["p3", "p4"], [NewPartition("p34", 300, 500)], decoded=decoded)
        if not decoded:
            _await_failure(events)
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at >= 300")
        events.assert_exact()
        assert events.cut == 300
        if decoded:
            events.grow()
            events.grow()
            events.await_state(p34="dropped")
            assert events.cut == 500
            events.assert_exact()


@both_ways
def test_partitions_across_the_cutline(retention_tables: RetentionTables, *, decoded: bool) -> None:
    """One that is due and proven with one that is not. No correction has a row above the cut-line: readers would find
    that twice."""
    events = retention_tables.automatic(partitions=6, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=RetentionOptions(lag="200", drop_grace="1 hour"))
    mirror.catch_up()
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered", p2="tiered")
        rearrange(events.database, "events", ["p2", "p3"], [NewPartition("p23", 200, 400)], decoded=decoded)
        if decoded:
            _await_stop(events, "p23")
        else:
            _await_failure(events)
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at >= 300")
        events.assert_exact()
    assert (events.cut, events.states()["p0"]) == (300, "tiered")


def test_a_partition_that_is_made_across_the_cutline_stops_retention(retention_tables: RetentionTables) -> None:
    """In place of two that were taken away before."""
    events = retention_tables.automatic(partitions=6, rows=10, lag=None)
    mirror = events.mirror
    mirror.register("public.events", retention=RetentionOptions(lag="200", drop_grace="1 hour"))
    mirror.catch_up()
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered", p2="tiered")
        _in_both(events, "DELETE FROM {} WHERE at >= 300 AND at < 400")
        for name in ("p2", "p3"):
            events.database.execute(f"ALTER TABLE events DETACH PARTITION {name}")
        mirror.await_frontier()
        events.database.execute("CREATE TABLE p23 PARTITION OF events FOR VALUES FROM (200) TO (400)")
        _await_stop(events, "p23")
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at >= 400")
        events.assert_exact()


@both_ways
def test_a_partition_while_it_is_sealed(retention_tables: RetentionTables, *, decoded: bool) -> None:
    events = retention_tables.manual()
    with events.mirror.pumping() as running:
        events.mirror.await_live("public.events")
        events.seal()
        _in_both(events, "UPDATE {} SET v = 'captured' WHERE at < 10")
        rearrange(events.database, "events", ["p0", "p1"], [NewPartition("p01", 0, 200)], decoded=decoded)
        if not decoded:
            _await_failure(events)
        assert events.try_advance(running) is not None
        _in_both(events, "UPDATE {} SET v = 'later' WHERE at < 150")
        events.assert_exact()
