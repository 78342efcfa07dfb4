"""`pause` and `resume`: a paused table holds nothing and stays as it is; a resumed one has what happened meanwhile."""

from __future__ import annotations

import random

import pytest

from mirror_pump.errors import TableError
from mirror_pump.ops.resync.pausing import follow, pause, resume
from mirror_pump.ops.resync.resync import ResyncAction
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import TableStatus
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.stream.publication import make_publication, not_whole
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.resyncs import drop_slot, resynced
from tests.support.table_wishes import parse_choices


@pytest.fixture
def gate(tasks: ThreadTaskRunner) -> GatedCopies:
    return GatedCopies(tasks)


@pytest.fixture
def two(database: Database, warehouse: str, gate: GatedCopies) -> Mirror:
    """Two live tables, without a pump."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g",
        "INSERT INTO u SELECT g, g FROM generate_series(1, 100) g",
    )
    mirror = Mirror.create(database, warehouse, gate)
    mirror.register("t", "u")
    mirror.catch_up()
    return mirror


def _status(mirror: Mirror, name: str) -> TableStatus:
    with StatusReader(mirror.settings) as reader:
        return next(table for table in reader.read().tables if table.table == name)


_START = "SELECT start_lsn, generation FROM modak.mirror_tables WHERE table_id = 't'::regclass::oid"


def test_a_paused_table_stays_as_it_is_and_holds_nothing(two: Mirror, database: Database, gate: GatedCopies) -> None:
    before = two.heap("t")
    steps = Steps()
    with two.pumping(steps):
        paused = pause(two.settings, "t")
        assert not paused.already
        (begun,) = database.rows(_START)
        database.execute("UPDATE t SET v = 'unseen'", "UPDATE u SET v = 'seen'")
        target = database.lsn()
        assert two.await_frontier() >= target, "a paused table holds up no other"
        assert database.rows("SELECT modak.wait_for(timeout => '5 seconds')") == [(True,)]
        await_true(lambda: two.acknowledged() >= target, 30, "the slot keeps no WAL for it")
        # What happens to it meanwhile is not followed, and no reason to begin anything.
        database.execute(
            "ALTER TABLE t ADD COLUMN w int DEFAULT 3",
            "ALTER TABLE t RENAME COLUMN v TO x",
            "TRUNCATE t",
            "INSERT INTO t SELECT g, 'new' FROM generate_series(1, 50) g",
        )
        two.await_frontier()
        again = pause(two.settings, "t")
        assert (again.already, again.since) == (True, paused.since)
        assert two.lake("public.t") == before
        two.assert_equal("public.u")
        status = _status(two, "public.t")
        assert (status.paused_since, status.error) == (paused.since, None)
        assert "mirror-pump resume public.t" in (status.note or "")
        assert status.frontier is not None
        assert status.frontier <= target
        with StatusReader(two.settings) as reader:
            assert reader.read().resyncs == (), "nothing copies it"

    with two.pumping(steps):
        # Another session of the pump begins with what the catalog says.
        database.execute("UPDATE t SET x = 'unseen by this pump'", "DELETE FROM u WHERE id < 10")
        two.await_frontier()
        assert two.lake("public.t") == before
        two.assert_equal("public.u")
        assert database.rows(_START) == [begun], "no copy was begun, and begun again"
        gate.hold()
        resumed = resume(two.settings, "t")
        assert resumed.was_paused
        await_true(lambda: gate.waiting, 60, "a chunk of the copy")
        database.execute("UPDATE t SET w = 4 WHERE id % 2 = 0")
        assert two.lake("public.t") == before, "readers keep it until the copy is complete"
        gate.let_go()
        two.await_live("public.t")
        two.await_frontier()
        two.assert_equal("public.t", "public.u")
        assert _status(two, "public.t").paused_since is None
        assert not resume(two.settings, "t").was_paused
    assert steps.count(Step.TABLE_WAITING) == 0, "nobody is told to act about it"
    two.assert_sound()


def test_a_pump_is_not_needed(two: Mirror, database: Database) -> None:
    pause(two.settings, "t")
    database.execute("DELETE FROM t WHERE id < 50")
    resume(two.settings, "t")
    pause(two.settings, "t")
    database.execute("INSERT INTO t VALUES (1000, 'between')")
    resumed = resume(two.settings, "t")
    (progress,) = follow(two.settings, [resumed.table_id], lambda _: None)
    assert (progress.step, progress.detail) == ("live", "")
    two.assert_equal("public.t")
    two.assert_sound()


@pytest.mark.further
def test_a_table_that_is_being_copied_for_the_first_time(two: Mirror, database: Database, gate: GatedCopies) -> None:
    database.execute("CREATE TABLE n (id int PRIMARY KEY, v text)", "INSERT INTO n VALUES (1, 'one')")
    gate.hold()
    with two.pumping():
        two.register("n")
        await_true(lambda: gate.waiting, 60, "a chunk")
        pause(two.settings, "n")
        database.execute("UPDATE n SET v = 'two'")
        gate.let_go()
        two.await_frontier()
        assert two.state("public.n") == "waiting"
        resume(two.settings, "n")
        two.await_live("public.n")
        two.await_frontier()
        two.assert_equal("public.n", "public.t")
    two.assert_sound()


def test_commands_on_a_paused_table(two: Mirror, database: Database) -> None:
    before = two.heap("u")
    for name in ("t", "u"):
        pause(two.settings, name)
    with pytest.raises(TableError, match="is registered, and paused since"):
        two.register("t")
    (named,) = resynced(two, "t").tables
    assert (named.action, named.error is not None) == (ResyncAction.LEAVE, True)
    assert "mirror-pump resume public.t" in (named.error.remedy if named.error else "")
    assert all(table.action is ResyncAction.LEAVE and table.error is None for table in resynced(two).tables)

    two.unregister("public.t")
    two.register("t")
    two.catch_up()
    two.assert_equal("public.t")

    # A new slot and a new publication know as little of it as the old one.
    drop_slot(two)
    database.execute("UPDATE u SET v = 'unseen'", "UPDATE t SET v = 'copied'")
    resynced(two)
    two.catch_up()
    two.assert_equal("public.t")
    assert two.lake("public.u") == before
    database.execute(f'DROP PUBLICATION "{two.settings.publication}"')
    with database.session() as connection:
        assert make_publication(connection, two.settings.publication) == 1
    two.catch_up()
    assert two.lake("public.u") == before
    resume(two.settings, "u")
    two.catch_up()
    two.assert_equal("public.t", "public.u")
    two.assert_sound()


@pytest.mark.further
def test_a_paused_table_that_somebody_publishes_by_hand_is_resumed(two: Mirror, database: Database) -> None:
    with two.pumping():
        pause(two.settings, "t")
        database.execute("UPDATE t SET v = 'unseen'")
        database.execute(f'ALTER PUBLICATION "{two.settings.publication}" ADD TABLE t')
        two.await_live("public.t")
        two.await_frontier()
        two.assert_equal("public.t")
        assert _status(two, "public.t").paused_since is None
        # And one that is taken out by hand is not paused, but told.
        database.execute(f'ALTER PUBLICATION "{two.settings.publication}" DROP TABLE t')
        await_true(lambda: _status(two, "public.t").error, 30, "it is not published")
        with database.session() as connection:
            assert not_whole(connection, two.settings.slot)
    two.assert_sound()


def test_dropped_and_refused_tables(two: Mirror, database: Database) -> None:
    pause(two.settings, "t")
    database.execute("DROP TABLE t", "CREATE TABLE nokey (id int)")
    two.catch_up()
    assert two.state("public.t") == "dropped"
    for act in (pause, resume):
        with pytest.raises(TableError, match="dropped"):
            act(two.settings, "t")
        with pytest.raises(TableError, match="not registered"):
            act(two.settings, "nokey")
    # A table that lost its key waits for one, also when it is resumed.
    pause(two.settings, "u")
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey")
    resume(two.settings, "u")
    two.catch_up()
    assert two.state("public.u") == "waiting"
    assert _status(two, "public.u").error
    database.execute("ALTER TABLE u ADD PRIMARY KEY (id)")
    two.catch_up()
    two.assert_equal("public.u")
    two.assert_sound()


@pytest.mark.further
def test_rules_of_columns_and_rows_come_back(two: Mirror, database: Database) -> None:
    """Under the names that the columns have then."""
    database.execute(
        "CREATE TABLE ruled (id int PRIMARY KEY, region int, secret text)",
        "ALTER TABLE ruled REPLICA IDENTITY FULL",
        "INSERT INTO ruled SELECT g, g % 2, 'plain' FROM generate_series(1, 40) g",
        "CREATE TABLE listed (id int PRIMARY KEY, v int, w int)",
        "INSERT INTO listed SELECT g, g, g FROM generate_series(1, 40) g",
    )
    two.register("ruled", choices=parse_choices([], [], ["secret=null"], where="region = 1"))
    two.register("listed", choices=parse_choices([], [], listed="id,v"))
    two.catch_up()
    for name in ("ruled", "listed"):
        pause(two.settings, name)
    database.execute("UPDATE ruled SET region = 1 WHERE id = 2", "ALTER TABLE listed RENAME COLUMN v TO x")
    database.execute("UPDATE listed SET x = 7 WHERE id = 1")
    for name in ("ruled", "listed"):
        resume(two.settings, name)
    two.catch_up()
    assert len(two.lake("public.ruled")) == 21
    assert {row[2] for row in two.lake("public.ruled")} == {None}
    assert min(two.lake("public.listed")) == (1, 7)
    assert all(len(row) == 2 for row in two.lake("public.listed"))
    with database.session() as connection:
        assert not not_whole(connection, two.settings.slot)
    two.assert_sound()


@pytest.mark.further
def test_a_table_that_sheds_partitions_drops_none_while_it_is_paused(
    retention_tables: RetentionTables, database: Database, tasks: ThreadTaskRunner
) -> None:
    events = retention_tables.automatic(partitions=5, rows=20, runner=tasks, fold_age=0.1, copy_chunk_bytes=8192)
    mirror = events.mirror
    gone = "SELECT count(*) FROM modak.partitions WHERE state = 'dropped'"
    with mirror.pumping():
        mirror.await_live("public.events")
        await_true(lambda: database.rows(gone)[0][0] >= 1, 60, "a partition is gone from the heap")
        pause(mirror.settings, "events")
        cut, before = events.cut, database.rows(gone)
        with database.connect(autocommit=False) as connection:
            events.write(connection, random.Random(1))
        mirror.await_frontier()
        with duckdb_connection() as duckdb:
            events.assert_exact(duckdb)
            assert (events.cut, database.rows(gone)) == (cut, before)
            resume(mirror.settings, "events")
            mirror.await_live("public.events")
            mirror.await_frontier()
            events.assert_exact(duckdb)
    mirror.assert_sound()
