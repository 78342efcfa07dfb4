"""Corrections of keys that have no row: new rows that arrive late, and deletes of absent keys. A key index knows that
there is nothing to delete. So no snapshot ever has an equality delete, and every engine reads every snapshot."""

from __future__ import annotations

from typing import Any, LiteralString

import pytest

from mirror_pump.engine.lake_reads.index_keys import read_keys
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.key_index_checks import check_indexes
from tests.support.maintenance import Maintained
from tests.support.pipeline import writing
from tests.support.retention_table import run
from tests.support.seam_scene import by_pyiceberg

EVENTS = "public.events"


def _announced(database: Database, *, going_on: bool) -> None:
    """Announces that another engine rewrites the table's files, or that it has finished."""
    if going_on:
        database.execute(
            "INSERT INTO modak.op_log (op_id, table_id, op_kind, phase, details)"
            " VALUES (gen_random_uuid(), 'events'::regclass::oid, 'compaction', 'rewriting', '{\"since_sequence\": 1}')"
        )
    else:
        database.execute("UPDATE modak.op_log SET phase = 'done' WHERE phase = 'rewriting'")


class Folds:
    """An observer of the pump, which looks at the result of each fold in the loop's thread."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.seen: list[tuple[int, str]] = []
        """Snapshots with equality deletes, and the index's phase as `status` shows it."""

    def __call__(self, step: Step, _: dict[str, object]) -> None:
        if step is not Step.FOLDED:
            return
        metadata = read_metadata(self.mirror.location(EVENTS), StorageOptions())
        unread = [snapshot for snapshot in metadata.snapshots if snapshot.summary.total(Total.EQUALITY_DELETES)]
        (phase,) = self.mirror.database.rows("SELECT key_index ->> 'phase' FROM modak.mirror_tables")[0]
        self.seen.append((len(unread), str(phase)))

    def await_seen(self) -> None:
        """Returns once every correction is in the lake and every fold was observed."""
        database = self.mirror.database
        unfolded = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(unfolded) == [(0,)], 120, "every correction folded")
        # The observer sees each fold after its publish.
        folds = database.rows("SELECT count(*) FROM modak.op_log WHERE details ->> 'kind' = 'fold'")[0][0]
        await_true(lambda: len(self.seen) >= folds, 60, "the observer saw every fold")

    def await_folded(self) -> None:
        """The same, and every snapshot could be read."""
        self.await_seen()
        assert {unread for unread, _ in self.seen} == {0}, "a snapshot has equality deletes"
        assert {phase for _, phase in self.seen} == {"ready"}


def _insert_late(connection: Any, first: int, count: int) -> None:
    """Rows of new keys below the cut-line, by plain INSERT."""
    for table in ("events", "model"):
        run(
            connection,
            f"INSERT INTO {table} SELECT g % 100, 10000 + g, 1, 'late', NULL"
            f" FROM generate_series({first}, {first + count - 1}) g",
        )


def _assert_read_by_all(events: EventsTable) -> None:
    """The published snapshot has every row below the cut-line, and main the whole table, as DuckDB and pyiceberg read
    them."""
    events.assert_exact()
    database = events.mirror.database
    (location,) = database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")[0]
    for where, read in ((f"WHERE at < {events.cut}", location), ("", events.mirror.location(EVENTS))):
        with database.connect() as connection:
            wanted = normalised(run(connection, f"SELECT at, id, n, v, big FROM model {where}").fetchall())
        assert_same(wanted, lake_rows(read), f"{read} by DuckDB")
        by_arrow = by_pyiceberg(read)
        assert by_arrow is not None, "pyiceberg refuses it"
        assert_same(wanted, by_arrow, f"{read} by pyiceberg")


@pytest.mark.further
def test_a_thousand_late_inserts_leave_no_equality_delete(
    retention_tables: RetentionTables, database: Database
) -> None:
    """From the first one on: the fold waits for the index, which the table has not needed before. The same with a pump
    that has just started."""
    events = retention_tables.manual(fold_age=0.05, fold_rows=100, convert_age=3600)
    mirror = events.mirror
    folds = Folds(mirror)
    for turn in range(2):
        with mirror.pumping(Steps(on=folds)) as running:
            if not turn:
                mirror.await_live(EVENTS)
                events.advance(running)
            for batch in range(5):
                with database.connect(autocommit=False) as connection:
                    _insert_late(connection, turn * 500 + batch * 100, 100)
                    delete(connection, 3, 70_000 + batch)
                    upsert(connection, 4, 2, f"changed {turn} {batch}")
                    delete(connection, 10 + 2 * batch, turn)
                folds.await_folded()
            _assert_read_by_all(events)
            assert running.steps.count(Step.CONVERTED) == 0, "there was nothing to convert"
            assert check_indexes(running.pump, mirror.runner, database) == 1
    assert len(folds.seen) >= 10


@pytest.mark.further
def test_an_absent_key_is_not_deleted_while_files_are_rewritten(
    retention_tables: RetentionTables, database: Database
) -> None:
    """Deletes are written by key then, but not for keys that have no row."""
    events = retention_tables.manual(fold_age=0.05, convert_age=3600)
    mirror = events.mirror
    folds = Folds(mirror)
    with mirror.pumping(Steps(on=folds)) as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            _insert_late(connection, 0, 10)
        folds.await_folded()
        _announced(database, going_on=True)
        with database.connect(autocommit=False) as connection:
            _insert_late(connection, 10, 10)
            delete(connection, 3, 70_000)
        folds.await_folded()
        _assert_read_by_all(events)
        with database.connect(autocommit=False) as connection:
            _insert_late(connection, 20, 10)
            upsert(connection, 4, 2, "changed")
        folds.await_seen()
        assert folds.seen[-1][0] > 0, "the key that has a row is deleted, by key"
        events.assert_exact()
        metadata = read_metadata(mirror.location(EVENTS), StorageOptions())
        assert max(snapshot.summary.total(Total.EQUALITY_DELETES) or 0 for snapshot in metadata.snapshots) == 1
        _announced(database, going_on=False)
        events.assert_exact()


@pytest.mark.further
@pytest.mark.parametrize("index_memory", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_without_room_for_an_index_folds_do_not_wait(
    retention_tables: RetentionTables, database: Database, index_memory: int
) -> None:
    events = retention_tables.manual(
        partitions=2, fold_age=0.05, convert_age=0.2, index_memory=index_memory, index_disk=0
    )
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            _insert_late(connection, 0, 10)
            delete(connection, 3, 70_000)
        await_true(lambda: running.steps.count(Step.FOLDED), 20, "a fold")
        events.assert_exact()


@pytest.mark.further
@pytest.mark.parametrize("wanted_by", ["the fold", "the stream"])
def test_a_fold_waits_for_its_index_only_so_long(
    retention_tables: RetentionTables, database: Database, wanted_by: str
) -> None:
    """Whether the fold or the stream needed the index. After that it deletes by key, as without an index."""
    limits = InternalLimits(index_patience=0.5)
    gate = GatedCopies(ThreadTaskRunner(), gated=read_keys)
    events = retention_tables.manual(runner=gate, fold_age=0.05, convert_age=3600, limits=limits)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
        gate.hold()
        try:
            if wanted_by == "the stream":
                for turn in range(50):
                    run_both(database, f"UPDATE {{}} SET n = {turn} WHERE at >= 100 AND at < 120")
                    mirror.await_frontier()
                    if gate.waiting:
                        break
                assert gate.waiting, "the index is being built"
            with database.connect(autocommit=False) as connection:
                _insert_late(connection, 0, 10)
            await_true(lambda: running.steps.count(Step.FOLDED), 30, "the fold goes without")
            assert gate.waiting
            assert not running.steps.count(Step.INDEX_READY)
        finally:
            gate.let_go()
        await_true(lambda: running.steps.count(Step.INDEX_READY), 30, "the index is ready")
        events.assert_exact()


def run_both(database: Database, statement: str) -> None:
    """Runs statements on the table and on its model, in one transaction."""
    with database.connect(autocommit=False) as connection:
        for table in ("events", "model"):
            run(connection, statement.format(table))


@pytest.mark.soak  # Spark rewrites its files.
def test_corrections_of_any_kind_beside_restarts_merges_and_rewrites(
    retention_tables: RetentionTables, database: Database, spark: Any
) -> None:
    """Random corrections of present and absent keys; pumps that end; merges by the pump, rewrites by Spark."""
    events = retention_tables.manual(fold_age=0.05, fold_rows=25, convert_age=0.3)
    mirror = events.mirror
    maintained = Maintained(mirror, spark)
    maintained.policy(EVENTS, snapshot_retention_hours=0, snapshot_min_retained=1)
    folds = 0
    with mirror.pumping() as running:
        mirror.await_live(EVENTS)
        events.advance(running)
    with writing(database, events.write, 17) as written:
        for turn in range(3):
            with mirror.pumping() as running:
                before = written()
                await_true(lambda: written() >= before + 40, 120, "changes")  # noqa: B023
                with database.connect(autocommit=False) as connection:
                    _insert_late(connection, turn * 100, 100)
                if turn:
                    assert not maintained.maintain(EVENTS).errors
                events.assert_exact()
                folds += running.steps.count(Step.FOLDED)
    with mirror.pumping() as running:
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 120, "everything folded and cleared"
        )
        # Equality deletes from the time of the rewrite are converted within moments, and then the published snapshot is
        # refreshed.
        pointer: LiteralString = "SELECT lake_props ->> 'metadata_location' FROM modak.cutline"
        await_true(lambda: by_pyiceberg(mirror.location(EVENTS)) is not None, 60, "no equality deletes in main")
        await_true(
            lambda: by_pyiceberg(database.rows(pointer)[0][0]) is not None,
            60,
            "no equality deletes in the published snapshot",
        )
        _assert_read_by_all(events)
        check_indexes(running.pump, mirror.runner, database)
    assert folds >= 3
