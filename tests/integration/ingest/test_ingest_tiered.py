"""Ingests into tiered tables, while their partitions leave and beside readers; and into ones that keep their heap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.events_table import EventsTable
from tests.support.ingest_scene import IngestScene
from tests.support.tiered import TieredTables


@pytest.fixture
def tiered_tables(database: Database, warehouse: str) -> Iterator[TieredTables]:
    """Creates mirrors with a tiered table."""
    tables = TieredTables(database, warehouse)
    yield tables
    tables.close()


def _scene(events: EventsTable, directory: Path) -> IngestScene:
    return IngestScene(events.database, directory, events.mirror, ("at", "id", "n", "v"))


def test_history_and_present_of_a_tiered_table(tiered_tables: TieredTables, tmp_path: Path) -> None:
    events = tiered_tables.tiered(fold_age=0.05)
    scene = _scene(events, tmp_path)
    first = [(at, 900, 1, "first") for at in (-50, 10, 110, 390)]
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        outcome = scene.ingest(scene.csv("a.csv", first))
        assert (outcome.lake_rows, outcome.heap_rows) == (3, 1)
        scene.into_model(first)
        events.assert_exact()
        with events.database.connect(autocommit=False) as connection:
            connection.execute('SELECT modak.upsert(\'events\', \'{"at": 10, "id": 900, "n": 2, "v": "later"}\')')
            connection.execute("UPDATE model SET n = 2, v = 'later' WHERE (at, id) = (10, 900)")
        events.assert_exact()
        events.grow()
        events.await_state(p2="dropped")
        again = [(at, 900, 3, "again") for at in (10, 110, 210, 450)]
        outcome = scene.ingest(scene.csv("b.csv", again))
        assert (outcome.lake_rows, outcome.heap_rows, outcome.replaced) == (3, 1, 2)
        scene.into_model(again)
        events.assert_exact()
        pending = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: events.database.rows(pending) == [(0,)], 60, "the corrections are folded")
        events.assert_exact()


def test_a_table_that_keeps_its_heap_gets_all_rows_there(tiered_tables: TieredTables, tmp_path: Path) -> None:
    events = tiered_tables.tiered(keep_heap=True, fold_age=0.05)
    scene = _scene(events, tmp_path)
    rows = [(at, 900, 1, "ingested") for at in (10, 110, 390)]
    with events.mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
        outcome = scene.ingest(scene.csv("a.csv", rows))
        assert (outcome.lake_rows, outcome.heap_rows) == (0, 3)
        scene.into_model(rows)
        events.assert_exact()
        with pytest.raises(MirrorPumpError):
            scene.ingest(scene.csv("b.csv", [(-50, 1, 1, "no partition would hold it")]))
        events.assert_exact()
    assert events.database.rows("SELECT count(*) FROM events WHERE id = 900") == [(3,)]
