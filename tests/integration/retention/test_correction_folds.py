"""Corrections of old rows are folded into the lake: reads are exact at any time, and nothing is cleared that a reader
needs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, LiteralString

import pytest

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot_thinning import ARCHIVE_SNAPSHOTS_KEPT
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.retention.fold import write_fold
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Steps, await_true
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.pipeline import writing


def _delta(database: Database) -> int:
    return int(database.rows("SELECT count(*) FROM modak.delta")[0][0])


def _unfolded(database: Database) -> int:
    return int(database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL")[0][0])


@pytest.mark.parametrize("index_memory", [pytest.param(0, marks=pytest.mark.soak), 1 << 24])
def test_folds_beside_writers_lose_nothing(
    retention_tables: RetentionTables, database: Database, index_memory: int
) -> None:
    events = retention_tables.manual(fold_age=0.05, fold_rows=25, convert_age=0.5, index_memory=index_memory)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        with duckdb_connection() as duckdb, writing(database, events.write, 11) as written:
            for _ in range(2):
                events.advance(running)
                before = written()
                while written() < before + 60:
                    events.assert_exact(duckdb)
        await_true(lambda: _delta(database) == 0, 30, "every correction folded and cleared")
        events.assert_exact()
        assert running.steps.count(Step.FOLDED) > 4
        assert running.steps.count(Step.FOLD_FAILED) == 0
        assert running.steps.count(Step.RETRYING) == 0
    mirror.assert_sound()


def test_a_row_corrected_during_its_fold_keeps_its_newest_value(
    retention_tables: RetentionTables, database: Database
) -> None:
    events = retention_tables.manual(partitions=2, fold_age=0.05)
    mirror = events.mirror

    def correct(step: Step, details: dict[str, object]) -> None:
        # The fold's files are written and its metadata is staged: it will land with the corrections that it read. A
        # batch moves the frontier.
        fold = step is Step.STAGED and details["frontier"] is None
        if fold and events.passed and _unfolded(database) and not again:
            again.append(True)
            with database.connect(autocommit=False) as connection:
                upsert(connection, 5, 1, "second")
                delete(connection, 6, 2)

    again: list[bool] = []
    with mirror.pumping(Steps(on=correct)) as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 1, "first")
            upsert(connection, 6, 2, "first")
        await_true(lambda: bool(again), 20, "a correction during the fold")
        events.assert_exact()
        await_true(lambda: _delta(database) == 0, 20, "everything folded")
        events.assert_exact()
        assert running.steps.count(Step.FOLDED) == 2


@pytest.mark.further
def test_what_a_pin_needs_is_not_cleared(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual(partitions=2, fold_age=0.05)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as reader, database.connect(autocommit=False) as pinned:
            # One pin is committed. The other one never is: its reader works in a single transaction.
            pin = _pin(pinned, events)
            pinned.commit()
            _pin(reader, events)
            with database.connect(autocommit=False) as connection:
                upsert(connection, 5, 1, "corrected")
            await_true(lambda: _unfolded(database) == 0, 20, "the fold")
            await_true(lambda: running.steps.count(Step.FOLDED), 20, "a fold")
            folds = running.steps.count(Step.FOLDED)
            assert folds == 1
            pinned.execute("DELETE FROM modak.read_pins WHERE pin_id = %s", (pin,))
            pinned.commit()
            looked = running.steps.count(Step.PUBLISHED)
            mirror.await_frontier()
            await_true(lambda: running.steps.count(Step.PUBLISHED) > looked, 20, "the pump goes on")
            events.assert_exact()
            assert _delta(database) == 1, "a reader whose pin nobody sees has lost a correction"
            reader.rollback()
            await_true(lambda: _delta(database) == 0, 20, "cleared: nobody reads")
            events.assert_exact()


@pytest.mark.further
def test_what_a_reader_saw_in_the_delta_is_there_when_it_looks_again(
    retention_tables: RetentionTables, database: Database
) -> None:
    """With a plan of two scans: first the keys that replace rows of the lake, then the rows that replace them. The
    pinned snapshot has the correction. A row that is cleared in between would be in neither."""
    events = retention_tables.manual(partitions=2, fold_age=0.05)
    mirror = events.mirror
    corrections: LiteralString = "SELECT pk, op, payload, folded_sequence FROM modak.delta ORDER BY pk"

    def looks(seconds: float) -> None:
        """The folder looks at the delta every 0.05 s."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert database.rows(corrections) == first, "a correction went, or changed, under the reader"

    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as before:
            # The correction stays as long as nobody knows what this reader pins.
            _pin(before, events)
            with database.connect(autocommit=False) as connection:
                upsert(connection, 5, 1, "corrected")
            await_true(lambda: _unfolded(database) == 0, 20, "the fold")
            with database.connect() as reader:
                pin = _pin(reader, events)
            before.rollback()
        first = database.rows(corrections)
        assert len(first) == 1
        looks(1)
        # It pins the same published snapshot as the first one. Nothing is cleared as long as either pin exists.
        (ours,) = database.rows("SELECT pin_id FROM modak.pin('events', in_one_snapshot => true)")
        looks(0.2)
        database.execute(f"DELETE FROM modak.read_pins WHERE pin_id = {pin}")
        await_true(lambda: _delta(database) == 0, 20, "cleared: who reads in one snapshot needs it no more")
        database.execute(f"DELETE FROM modak.read_pins WHERE pin_id = {ours[0]}")
        # An expired pin belongs to a reader that died.
        with database.connect() as reader:
            _pin(reader, events)
            upsert(reader, 6, 2, "corrected")
        await_true(lambda: _unfolded(database) == 0, 20, "the fold")
        database.execute("UPDATE modak.read_pins SET expires_at = now()")
        await_true(lambda: _delta(database) == 0, 20, "cleared: the pin expired")
        events.assert_exact()


def _pin(connection: Any, events: EventsTable) -> int:
    row = connection.execute(
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes'"
        " FROM modak.cutline c WHERE c.table_id = %s RETURNING pin_id",
        (events.table_id,),
    ).fetchone()
    return int(row[0])


@pytest.mark.further
def test_the_snapshot_of_an_uncommitted_pin_stays_in_the_history(
    retention_tables: RetentionTables, database: Database
) -> None:
    events = retention_tables.manual(partitions=2, fold_age=0.05)
    mirror = events.mirror

    def fold(value: str) -> None:
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 1, value)
        await_true(lambda: _unfolded(database) == 0, 20, "a fold")

    def history() -> set[int]:
        known = read_metadata(mirror.location("public.events"), StorageOptions())
        return {int(snapshot.snapshot_id) for snapshot in known.snapshots}

    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as reader:
            _pin(reader, events)
            row = reader.execute("SELECT max(pinned_lake_snapshot_id) FROM modak.read_pins").fetchone()
            assert row is not None
            for number in range(ARCHIVE_SNAPSHOTS_KEPT + 2):
                fold(f"corrected {number}")
                assert row[0] in history()
            reader.rollback()
        fold("corrected at last")
        assert row[0] not in history()


@pytest.mark.further
def test_a_pin_of_an_older_snapshot_keeps_corrections(retention_tables: RetentionTables, database: Database) -> None:
    events = retention_tables.manual(partitions=2, fold_age=0.05)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect() as connection:
            pin = _pin(connection, events)
            upsert(connection, 5, 1, "one")
            await_true(lambda: _unfolded(database) == 0, 20, "the first fold")
            upsert(connection, 7, 1, "two")
            await_true(lambda: _unfolded(database) == 0, 20, "the second fold")
            assert _delta(database) == 2
            connection.execute("DELETE FROM modak.read_pins WHERE pin_id = %s", (pin,))
        await_true(lambda: _delta(database) == 0, 20, "cleared")
        events.assert_exact()
        journal = database.rows("SELECT details ->> 'rows' FROM modak.op_log WHERE details ->> 'kind' = 'fold'")
        assert [row[0] for row in journal] == ["1", "1"]


@pytest.mark.further
def test_an_unpublished_fold_leaves_no_file(
    retention_tables: RetentionTables, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a key index: a fold consists of a data file and an equality-delete file.
    events = retention_tables.manual(partitions=2, fold_age=0.05, index_memory=0)
    mirror = events.mirror
    folding, busy, written = threading.Event(), threading.Event(), threading.Event()
    paths: list[Path] = []

    def held(*arguments: Any) -> FoldCorrections:
        folding.set()
        assert busy.wait(60)
        fold = write_fold(*arguments)
        files = fold.segment.files
        paths.extend(Path(file.path.removeprefix("file://")) for file in (*files.data, *files.deletes))
        assert all(path.exists() for path in paths)
        written.set()
        return fold

    def on(step: Step, _: dict[str, object]) -> None:
        if step is Step.ACKNOWLEDGED and folding.is_set() and not written.is_set():
            # The loop stays here until the fold is about to enter the inbox, and takes no event from there.
            busy.set()
            assert written.wait(60)
            running.pump.request_stop()

    monkeypatch.setattr("mirror_pump.pipeline.retention.fold.write_fold", held)
    running = mirror.start(Steps(on=on))
    mirror.await_live("public.events")
    events.advance(running)
    with database.connect(autocommit=False) as connection:
        upsert(connection, 5, 1, "corrected")
    # Before it writes, the folder requests a key index from the loop. Nothing may prevent the loop from answering.
    assert folding.wait(60)
    database.execute("UPDATE events SET v = 'young' WHERE at >= 100", "UPDATE model SET v = 'young' WHERE at >= 100")
    running.join()
    assert len(paths) == 2
    assert not any(path.exists() for path in paths)
