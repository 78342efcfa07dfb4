"""`resync` of tables whose old rows only the lake has: these stay, corrected by modak.delta; the rest is the heap's."""

from __future__ import annotations

import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Steps, await_true, lake_rows
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.pipeline import writing
from tests.support.resyncs import assert_one_swap, audit_promises, drop_slot, resynced
from tests.support.retention_table import WIDTH, run


def _shed(events: EventsTable) -> None:
    """Has the pump shed the oldest partitions, and take them from the heap."""
    with events.mirror.pumping():
        events.mirror.await_live("public.events")
        gone = "SELECT count(*) >= 2 FROM modak.partitions WHERE state = 'dropped'"
        await_true(lambda: events.database.rows(gone) == [(True,)], 60, "two partitions are gone from the heap")


def test_rows_that_only_the_lake_has_stay(
    retention_tables: RetentionTables, database: Database, tasks: ThreadTaskRunner
) -> None:
    """Through a lost slot, with corrections and changes that nobody saw, a new column, and writers all the while."""
    gate = GatedCopies(tasks)
    events = retention_tables.automatic(partitions=5, rows=20, runner=gate, fold_age=0.1, copy_chunk_bytes=8192)
    mirror = events.mirror
    _shed(events)
    kept = mirror.frontier()
    cut = events.cut
    assert database.rows("SELECT count(*) FROM events WHERE at < %s", (WIDTH,)) == [(0,)]
    drop_slot(mirror)
    with database.connect(autocommit=False) as connection:
        upsert(connection, 3, 3, "corrected while the slot is lost")
        delete(connection, 5, 1)
        upsert(connection, cut + 3, 3, "changed while the slot is lost")
        delete(connection, cut + 5, 1)
        for table in ("events", "model"):
            run(connection, f"ALTER TABLE {table} ADD COLUMN c int DEFAULT 9")
    events.columns += ", c"
    with duckdb_connection() as duckdb:
        events.assert_exact(duckdb)
        audit_promises(database)
        (begun,) = resynced(mirror).tables
        assert begun.kept_below == str(cut)
        # Its note is in the stream, and does not know the column that was added before.
        with database.session(autocommit=False) as connection:
            for table in ("events", "model"):
                run(connection, f"ALTER TABLE {table} ADD COLUMN d int DEFAULT 8")
        events.columns += ", d"
        gate.hold()
        with mirror.pumping(), writing(database, events.write, 7) as written:
            await_true(lambda: gate.waiting, 30, "a chunk")
            first = written()
            while written() < first + 10:
                events.assert_exact(duckdb)
            assert database.rows("SELECT count(*) > 0 FROM modak.delta") == [(True,)]
            assert events.cut == cut, "the cut-line stands still"
            gate.let_go()
            mirror.await_live("public.events")
            first = written()
            while written() < first + 10:
                events.assert_exact(duckdb)
        events.assert_exact(duckdb)
    # The retention of the table goes on after the swap (tests/acceptance/test_resync_readers.py), so only the first
    # part of this is of one publish.
    assert_one_swap(database, ("events",), kept)
    mirror.assert_sound()


@pytest.mark.further
def test_rows_that_only_the_lake_has_stay_if_only_what_differs_is_replaced(
    retention_tables: RetentionTables, database: Database, tasks: ThreadTaskRunner
) -> None:
    """After a lost slot, and after a pause, with corrections below the cut-line and writers all the while."""
    gate = GatedCopies(tasks)
    events = retention_tables.automatic(partitions=5, rows=20, runner=gate, fold_age=0.1, copy_chunk_bytes=8192)
    mirror = events.mirror
    _shed(events)
    cut = events.cut

    def change(text: str) -> None:
        """Nothing of this comes by a stream: below the cut-line by corrections, above it not at all."""
        with database.connect(autocommit=False) as connection:
            upsert(connection, 3, 3, text)
            delete(connection, 5, 1)
            upsert(connection, cut + 3, 3, text)
            delete(connection, cut + 5, 1)

    drop_slot(mirror)
    change("changed while the slot is lost")
    steps = Steps()
    with duckdb_connection() as duckdb:
        resynced(mirror, where_different=True)
        for again in (True, False):
            gate.hold()
            with mirror.pumping(steps), writing(database, events.write, 7) as written:
                await_true(lambda: gate.waiting, 30, "a chunk")
                first = written()
                while written() < first + 5:
                    events.assert_exact(duckdb)
                gate.let_go()
                mirror.await_live("public.events")
                first = written()
                while written() < first + 5:
                    events.assert_exact(duckdb)
            events.assert_exact(duckdb)
            if again:
                pause(mirror.settings, "events")
                change("changed in a pause")
                resume(mirror.settings, "events")
    assert steps.count(Step.ROWS_COMPARED) == 2
    assert steps.count(Step.CHUNK_COPIED) == 0
    assert max(steps.details(Step.ROWS_COMPARED, "deleted")) < 60, "no row below the cut-line is looked at"
    mirror.assert_sound()


@pytest.mark.further
def test_rows_of_a_partition_that_somebody_dropped_stay(retention_tables: RetentionTables, database: Database) -> None:
    """Above the cut-line, where a copy would remove them: the table is refused, or fails when there is no choice."""
    events = retention_tables.manual()
    mirror = events.mirror
    with mirror.pumping():
        mirror.await_live("public.events")
        mirror.await_frontier()
        before = lake_rows(mirror.location("public.events"))
        database.execute("DROP TABLE p1")
        mirror.await_frontier()
        (table,) = resynced(mirror, "events").tables
        assert isinstance(table.error, TableError)
        assert "tier values in {[" in str(table.error)
        assert mirror.state("public.events") == "live"
    drop_slot(mirror)
    (table,) = resynced(mirror).tables
    assert "it fails, readable as it is" in str(table.error)
    with mirror.pumping():
        await_true(lambda: mirror.state("public.events") == "failed", 30, "the table failed")
        assert "of partitions that were dropped or detached above the cut-line" in mirror.error("public.events")
        assert lake_rows(mirror.location("public.events")) == before


@pytest.mark.soak
@pytest.mark.unverified("the lake of a table that failed is not compared")
def test_a_change_that_old_rows_cannot_follow_fails_the_table_alone(
    retention_tables: RetentionTables, database: Database
) -> None:
    events = retention_tables.manual()
    mirror = events.mirror
    database.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    mirror.register("other")
    with mirror.pumping() as running:
        mirror.await_live("public.events", "public.other")
        events.advance(running)
        mirror.await_frontier()
        before = events.seam()[0]
    drop_slot(mirror)
    database.execute("ALTER TABLE events ADD COLUMN flag float8 DEFAULT random()", "INSERT INTO other VALUES (2)")
    resynced(mirror)
    with mirror.pumping():
        mirror.await_live("public.other")
        assert mirror.state("public.events") == "failed"
        assert "old rows are in the lake alone" in mirror.error("public.events")
        mirror.await_frontier()
        mirror.assert_equal("public.other")
    database.execute("ALTER TABLE events DROP COLUMN flag")
    assert events.seam()[0] == before, "what is there stays readable"
