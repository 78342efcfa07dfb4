"""What readers by hand see through a pin when ingests and loads land after it: docs/reading.md, By hand."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import LiteralString

import pytest

from mirror_pump.ops.load.load_job import LoadRequest, load
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.source.loads.load_writes import LoadMode
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Row, await_true
from tests.support.events_table import EventsTable
from tests.support.ingest_scene import IngestScene, csv_text
from tests.support.retention_sql import SqlTable

COLD, HOT = (25, 900, 1, "cold"), (350, 900, 1, "hot")


class PinnedReader:
    """A reader that has pinned public.events."""

    def __init__(self, scene: IngestScene, *, in_one_snapshot: bool) -> None:
        self._scene = scene
        self._events = EventsTable(scene.database, mirror=scene.mirror)
        ((self._pin, self._cut, self._snapshot, self._location),) = scene.database.rows(
            "SELECT pin_id, t, s, metadata_location FROM modak.pin('events', '10 minutes', %s)", (in_one_snapshot,)
        )

    def rows(self) -> tuple[list[Row], list[Row]]:
        """What it finds now, and the model in the same snapshot of the database."""
        return self._events.seam(pin=(self._cut, self._location))

    def is_present(self) -> bool:
        """Whether cut-line and published snapshot are those that it has pinned."""
        return self._scene.database.rows("SELECT tier_key_hi, lake_snapshot_id FROM modak.cutline") == [
            (self._cut, self._snapshot)
        ]

    def release(self) -> None:
        assert self._scene.database.rows("SELECT modak.release(%s)", (self._pin,)) == [(True,)]


def _readers(scene: IngestScene) -> list[PinnedReader]:
    return [PinnedReader(scene, in_one_snapshot=one) for one in (False, True)]


@pytest.mark.further
@pytest.mark.parametrize("rows", [[COLD], [COLD, HOT]], ids=["lake", "both"])
def test_a_read_by_a_pin_from_before_an_ingest_lacks_the_rows_of_the_lake(
    scene: IngestScene, rows: Sequence[Row]
) -> None:
    """It can tell: the published snapshot is another one. Who does not read in one snapshot is waited for, if such a
    read would find the rows of the heap. Who pins after the commit sees all of them."""
    early = PinnedReader(scene, in_one_snapshot=True)
    patient = PinnedReader(scene, in_one_snapshot=False) if rows == [COLD] else None
    scene.ingest(scene.csv("both.csv", rows))
    scene.into_model(rows)
    for reader in (early, patient):
        if reader is not None:
            found, wanted = reader.rows()
            assert set(wanted) - set(found) == {COLD}
            assert not set(found) - set(wanted)
            assert not reader.is_present()
            reader.release()
    for reader in _readers(scene):
        found, wanted = reader.rows()
        assert found == wanted
        assert reader.is_present()


def test_a_committed_load_is_visible_through_every_pin(scene: IngestScene) -> None:
    """Its rows below the cut-line are corrections: through a pin from before it, from before its fold, and from after
    that, until no pin needs them any more."""
    before = _readers(scene)
    _load(scene, "new", [COLD, HOT])
    unfolded = _readers(scene)
    _assert_exact(*before, *unfolded)
    with scene.mirror.with_options(fold_age=0.05, retention_interval=0.1).pumping():
        _await_corrections(scene, [True])
        folded = _readers(scene)
        _assert_exact(*before, *unfolded, *folded)
        for reader in (before[0], unfolded[0], folded[0]):
            reader.release()
        # The others read in one snapshot. The first correction could be cleared when the second one is folded, if the
        # pins from before the first fold did not need it.
        _load(scene, "newer", [(26, 900, 1, "cold, too")])
        _await_corrections(scene, [True, True])
        _assert_exact(before[1], unfolded[1], folded[1])
        before[1].release()
        unfolded[1].release()
        folded[1].release()
        late = PinnedReader(scene, in_one_snapshot=True)
        _await_corrections(scene, [])
        _assert_exact(late, *_readers(scene))
    assert len(scene.lake("SELECT * FROM lake WHERE id = 900")) == 2


def _load(scene: IngestScene, label: str, rows: Sequence[Row]) -> None:
    """Loads new rows, into the model, too."""
    content = csv_text(rows, scene.columns).encode()
    load(scene.database.dsn, LoadRequest("events", label, FileFormat.CSV, LoadMode.INSERT), io.BytesIO(content))
    scene.into_model(rows)


def _assert_exact(*readers: PinnedReader) -> None:
    for reader in readers:
        found, wanted = reader.rows()
        assert found == wanted


def _await_corrections(scene: IngestScene, folded: list[bool]) -> None:
    """Until there are so many, folded or not."""
    query: LiteralString = "SELECT folded_sequence IS NOT NULL FROM modak.delta ORDER BY version"
    await_true(
        lambda: [row[0] for row in scene.database.rows(query)] == folded, 60, f"corrections, folded or not: {folded}"
    )


def test_rows_where_the_heap_has_no_partition_are_corrections_above_an_older_pin(database: Database) -> None:
    """A reader in one snapshot, by the cut-line that it has pinned, finds them in neither part. It can tell: the
    cut-line is another one."""
    table = SqlTable(database)
    database.execute("DROP TABLE ev1")
    table.pass_by("ev0", 100)
    ((cut, snapshot),) = database.rows("SELECT t, s FROM modak.pin('ev', in_one_snapshot => true)")
    table.pass_by("ev2", 300)
    database.execute("INSERT INTO ev (id, at) VALUES (9, 150)")
    assert cut == 100
    assert table.value("SELECT count(*) FROM ev WHERE at >= %s AND id = 9", cut) == 0
    assert table.value("SELECT tier_key FROM modak.delta") == 150
    assert database.rows("SELECT tier_key_hi, lake_snapshot_id FROM modak.cutline") == [(300, snapshot)]
