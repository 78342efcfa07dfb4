"""`unregister --restore-heap` of tiered tables: their rows come back; tables that keep their heap have them already."""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.register.unregistration import unregister_former
from mirror_pump.testing.mirror import assert_same, normalised
from tests.support.events_table import EventsTable, delete, upsert
from tests.support.retention_table import run
from tests.support.tiered import TieredTables, tiered

pytestmark = pytest.mark.further


def _assert_whole(events: EventsTable, partitions: int) -> None:
    with events.database.session() as connection:
        heap = run(connection, f"SELECT {events.columns} FROM events").fetchall()
        model = run(connection, f"SELECT {events.columns} FROM model").fetchall()
    assert_same(normalised(model), normalised(heap), "the heap")
    assert events.database.rows("SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass") == [
        (partitions,)
    ]
    assert events.database.rows("SELECT tgname FROM pg_trigger WHERE tgname ~ 'modak|mirror_pump'") == []


def test_a_tiered_table_comes_back(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=60, fold_age=0.2)
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        with events.database.session(autocommit=False) as connection:
            upsert(connection, 5, 77, "corrected")
            delete(connection, 10, 6)
            for table in ("events", "model"):
                run(connection, f"INSERT INTO {table} VALUES (-7, 1, 3, 'below all partitions')")
        with pytest.raises(TableError, match="only copy"):
            mirror.unregister("events")
        mirror.unregister("events", restore_heap=True, drop_lake=True)
    _assert_whole(events, 5)


def test_a_table_that_keeps_its_heap_has_nothing_to_bring_back(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=4, rows=20, keep_heap=True)
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
        with events.database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"UPDATE {table} SET n = 5 WHERE at < 50")
        said = mirror.unregister("events", restore_heap=True)
    assert "its heap has all of its rows" in said
    _assert_whole(events, 4)


def test_a_table_that_keeps_its_heap_is_unregistered_without_a_choice(tiered_tables: TieredTables) -> None:
    events = tiered_tables.tiered(partitions=3, rows=20, keep_heap=True)
    mirror = events.mirror
    with mirror.pumping():
        events.await_state(p0="tiered")
        with events.database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"DELETE FROM {table} WHERE at < 50")
        mirror.unregister("events", drop_lake=True)
    _assert_whole(events, 3)


def test_a_table_that_keeps_its_heap_is_registered_again_once_its_former_lake_table_is_gone(
    tiered_tables: TieredTables,
) -> None:
    """Also while corrections were not folded: the heap has them."""
    events = tiered_tables.tiered(partitions=4, rows=20, keep_heap=True, fold_age=3600)
    mirror = events.mirror
    again = "mirror-pump unregister --former public.events"
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
        with events.database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"UPDATE {table} SET n = 5 WHERE at < 50")
        assert again in mirror.unregister("events", keep_lake=True)
        _assert_whole(events, 4)
        with pytest.raises(TableError, match="holds old rows") as refused:
            mirror.register("public.events", retention=tiered(keep_heap=True))
        assert again in refused.value.remedy
        unregister_former(mirror.settings, "public.events")
        mirror.register("public.events", retention=tiered(keep_heap=True))
        assert events.cut < 0
        events.await_state(p0="tiered", p1="tiered")
        with events.database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"DELETE FROM {table} WHERE at < 20")
        events.assert_exact()
    assert events.cut == 200
    with events.database.session() as connection:
        assert_same(
            normalised(run(connection, "SELECT at, id, n, v FROM model").fetchall()),
            normalised(run(connection, "SELECT at, id, n, v FROM events").fetchall()),
            "the heap",
        )
