"""Ingests into a mirrored table with heap retention whose lake table has lake partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.testing.mirror import assert_same, await_true, lake_rows
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.ingest_scene import IngestScene
from tests.support.laid_out_tables import SnapshotFiles
from tests.support.lake_partitions import WIDTH, assert_divided, partition_of

_UNFOLDED = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"


def _assert_everywhere(events: EventsTable, scene: IngestScene) -> None:
    """Every reading finds the rows of the model: across the cut-line by hand and by the product, and the lake's two
    branches by DuckDB and by pyiceberg. Each file has rows, and deletes, of its own lake partition."""
    mirror = events.mirror
    await_true(lambda: events.database.rows(_UNFOLDED) == [(0,)], 60, "all corrections are folded")
    mirror.await_frontier()
    main = "public.events"
    await_true(
        lambda: not LakeTable.load(mirror.location(main), StorageOptions()).equality_deletes, 60, "all are by position"
    )
    events.assert_exact()
    scene.assert_exact()
    model = scene.model()
    below = [row for row in model if row[0] < events.cut]
    ((archive,),) = events.database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
    for location, wanted in ((archive, below), (mirror.location(main), model)):
        assert set(assert_divided(location)) == {partition_of(row[0]) for row in wanted}
        assert_same(wanted, lake_rows(location), "by DuckDB")
        files = SnapshotFiles(location)
        files.assert_divided()
        assert_same(wanted, files.rows(), "by pyiceberg")


@pytest.mark.further
def test_rows_of_several_lake_partitions_replace_and_are_corrected_and_folded(
    retention_tables: RetentionTables, tmp_path: Path
) -> None:
    events = retention_tables.automatic(lake_partition=str(WIDTH), fold_age=0.05, convert_age=0.1, merge_bytes=0)
    scene = IngestScene(events.database, tmp_path, events.mirror, ("at", "id", "n", "v"))
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        former = events.database.rows("SELECT at, id FROM model WHERE at < 200 AND id % 3 = 0")
        assert len({partition_of(at) for at, _ in former}) == 7, "rows of every lake partition below the cut-line"
        # New ones, too: below all others, at the edges of lake partitions, and on both sides of the cut-line.
        added = [(at, 900) for at in (-31, -30, 0, 29, 30, 89, 90, 179, 180, 199, 200, 209, 210, 399)]
        rows = [(at, key, 1, "ingested") for at, key in (*former, *added)]
        outcome = scene.ingest(scene.csv("first.csv", rows))
        counts = (outcome.lake_rows, outcome.heap_rows, outcome.replaced)
        assert counts == (len(former) + 10, 4, len(former))
        scene.into_model(rows)
        _assert_everywhere(events, scene)
        with events.database.connect(autocommit=False) as connection:
            # Of ingested rows that replaced one, of new ones, and of keys that nobody had.
            for at, key in (*former[::5], *added[:4], (91, 901), (-61, 901)):
                upsert(connection, at, key, "corrected")
            for at, key in (*former[1::5], *added[4:6]):
                delete(connection, at, key)
        events.assert_exact()
        _assert_everywhere(events, scene)
        # Over ingested rows, folded ones and deleted ones.
        again = [(at, key, 2, "again") for at, key in (*former[::2], *added, (91, 901))]
        before = {(at, key) for at, key, *_ in scene.model() if at < 200}
        outcome = scene.ingest(scene.csv("again.csv", again))
        assert outcome.replaced == len([row for row in again if row[:2] in before])
        scene.into_model(again)
        _assert_everywhere(events, scene)
        events.grow()
        events.await_state(p2="dropped")
        _assert_everywhere(events, scene)


_COUNTED_NOTES = """
CREATE TABLE notes (bytes bigint);
CREATE FUNCTION count_notes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.notes VALUES (length(NEW.details::text)); RETURN NULL; END $$;
CREATE TRIGGER count_notes AFTER UPDATE ON modak.op_log FOR EACH ROW
  WHEN (NEW.op_kind = 'ingest' AND NEW.phase = 'writing') EXECUTE FUNCTION count_notes()
"""


@pytest.mark.further
def test_the_journal_of_many_files_is_written_seldom(retention_tables: RetentionTables, tmp_path: Path) -> None:
    """Neither one transaction a file, nor a list of all files each time."""
    events = retention_tables.automatic(lake_partition="1", fold_age=0.05)
    scene = IngestScene(events.database, tmp_path, events.mirror, ("at", "id", "n", "v"))
    with events.mirror.pumping():
        events.await_state(p0="dropped", p1="dropped")
        events.database.execute(_COUNTED_NOTES)
        rows = [(at, 900, 1, "many files") for at in range(-60, 60)]
        outcome = scene.ingest(scene.csv("many.csv", rows))
        assert outcome.files >= 120
        ((notes, size),) = events.database.rows("SELECT count(*), coalesce(max(bytes), 0) FROM notes")
        assert notes <= 8
        assert size < 1000
        scene.into_model(rows)
        scene.assert_exact()
