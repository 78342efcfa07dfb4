"""Ingests into tiered tables, while their partitions leave and beside readers; and into ones that keep their heap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.engine.lake_reads.index_keys import read_keys
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, await_true
from tests.support.events_table import EventsTable, upsert
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


def _correct(events: EventsTable, value: str) -> None:
    """Corrects two rows below the cut-line."""
    with events.database.connect(autocommit=False) as connection:
        upsert(connection, 5, 2, value)
        upsert(connection, 10, 900, value)


def _await_folded(events: EventsTable) -> None:
    pending = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
    await_true(lambda: events.database.rows(pending) == [(0,)], 60, "the corrections are folded")


def _equality_deletes(events: EventsTable) -> int:
    """The most equality deletes that any snapshot has."""
    metadata = read_metadata(events.mirror.location("public.events"), StorageOptions())
    return max(snapshot.summary.total(Total.EQUALITY_DELETES) or 0 for snapshot in metadata.snapshots)


def test_history_and_present_of_a_tiered_table(tiered_tables: TieredTables, tmp_path: Path) -> None:
    """The key index does not know what ingests and advances bring. No fold deletes by key because of that, so every
    engine can read every snapshot."""
    events = tiered_tables.tiered(fold_age=0.05, convert_age=3600)
    scene = _scene(events, tmp_path)
    first = [(at, 900, 1, "first") for at in (-50, 10, 110, 390)]
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        _correct(events, "before")
        _await_folded(events)
        outcome = scene.ingest(scene.csv("a.csv", first))
        assert (outcome.lake_rows, outcome.heap_rows) == (3, 1)
        scene.into_model(first)
        events.assert_exact()
        _correct(events, "after an ingest")
        events.assert_exact()
        _await_folded(events)
        events.grow()
        events.await_state(p2="dropped")
        _correct(events, "after an advance")
        again = [(at, 900, 3, "again") for at in (10, 110, 210, 450)]
        outcome = scene.ingest(scene.csv("b.csv", again))
        assert (outcome.lake_rows, outcome.heap_rows, outcome.replaced) == (3, 1, 2)
        scene.into_model(again)
        events.assert_exact()
        _await_folded(events)
        events.assert_exact()
        assert not _equality_deletes(events)


@pytest.mark.further
def test_a_fold_that_finds_an_outdated_index_waits_only_so_long(tiered_tables: TieredTables, tmp_path: Path) -> None:
    """After that it deletes by key, as without an index."""
    gate = tiered_tables.gated(read_keys)
    limits = QUICK.model_copy(update={"index_patience": 0.5})
    events = tiered_tables.tiered(runner=gate, fold_age=0.05, convert_age=3600, limits=limits)
    scene = _scene(events, tmp_path)
    rows = [(at, 900, 1, "ingested") for at in (10, 110)]
    with events.mirror.pumping() as running:
        events.await_state(p0="dropped", p1="dropped")
        _correct(events, "before")
        await_true(lambda: running.steps.count(Step.INDEX_READY), 60, "the index is ready")
        _await_folded(events)
        gate.hold()
        try:
            scene.ingest(scene.csv("a.csv", rows))
            scene.into_model(rows)
            _correct(events, "after")
            _await_folded(events)
            await_true(lambda: gate.waiting, 60, "the index is being built again")
            assert _equality_deletes(events)
        finally:
            gate.let_go()
        events.assert_exact()
        assert not running.steps.count(Step.FOLD_FAILED)


@pytest.mark.further
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
