"""Partitions are made ahead of the rows, whatever else the pump does and however fast the key moves on."""

from __future__ import annotations

import pytest

from mirror_pump.ops.status.alerts import alerts_of
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.testing.mirror import await_true
from tests.support.events_table import EventsTable
from tests.support.retention_table import WIDTH
from tests.support.tiered import TieredTables

_TOP = (
    "SELECT coalesce(max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \\(.(\\d+)'))[1]::bigint), 0)"
    " FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass"
)


def _ahead(events: EventsTable) -> int:
    """Whole partitions above the newest row."""
    newest, top = events.database.rows(f"SELECT (SELECT max(at) FROM events), ({_TOP})")[0]
    return int(top - newest - 1) // WIDTH


@pytest.mark.further
def test_partitions_are_made_while_another_one_is_copied(tiered_tables: TieredTables) -> None:
    runner = tiered_tables.gated()
    events = tiered_tables.tiered(partitions=4, rows=10, premake=2, runner=runner)
    runner.hold()
    with events.mirror.pumping():
        await_true(lambda: runner.waiting, 30, "a partition is copied")
        await_true(lambda: _ahead(events) == 2, 30, "two are ready")
        events.database.execute(
            "INSERT INTO events VALUES (599, 1, 1, 'x')", "INSERT INTO model VALUES (599, 1, 1, 'x')"
        )
        await_true(lambda: _ahead(events) >= 2, 30, "two more are ready")
        assert runner.waiting
        runner.let_go()
        events.await_state(p0="dropped", p1="dropped")
        events.assert_exact()


@pytest.mark.further
def test_more_are_ready_the_faster_the_key_moves_on(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=2, rows=10, lag="100000", premake=1)
    at = 150

    def insert() -> bool:
        nonlocal at
        if _ahead(events) > 0:
            at += 60
            events.database.execute(*(f"INSERT INTO {table} VALUES ({at}, 1, 1, 'x')" for table in ("events", "model")))
        return _ahead(events) > 5

    with events.mirror.pumping():
        await_true(insert, 60, "more than one is ready")
        events.assert_exact()


@pytest.mark.further
def test_keys_of_rows_that_failed_count(tiered_tables: TieredTables) -> None:
    """The sequence has moved on, and no row shows it."""
    events = tiered_tables.tiered(partitions=2, rows=10, lag="100000", premake=1)
    events.database.execute(
        "CREATE SEQUENCE keys OWNED BY events.at", "ALTER TABLE events ALTER at SET DEFAULT nextval('keys')"
    )
    with events.mirror.pumping():
        await_true(lambda: _ahead(events) == 1, 30, "one is ready")
        events.database.rows("SELECT setval('keys', 4000)")
        await_true(lambda: _ahead(events) >= 40, 30, "the next row finds a partition")
        events.database.execute("INSERT INTO events (id) VALUES (1)", "INSERT INTO model VALUES (4001, 1)")

        def alerts() -> str:
            with StatusReader(events.mirror.settings) as reader:
                return str(alerts_of(reader.read()))

        await_true(
            lambda: "its key moves on faster than partitions are made: they end in 0 s" in alerts(), 30, alerts()
        )
        events.assert_exact()
