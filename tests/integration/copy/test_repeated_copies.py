"""Tables that are copied again: readers see the old content at its old frontier until the new one is complete, and the
history continues."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableState
from mirror_pump.ops.register.registration import register
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Severity
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.support.changed_tables import TABLES, published
from tests.support.foreign_writes import without_triggers


def test_the_old_content_stays_at_its_old_frontier_until_the_new_one_is_complete(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute("UPDATE t SET v = 'before' WHERE id <= 20", "DELETE FROM t WHERE id = 21")
        mirror.await_frontier()
        before = mirror.heap("t")
        gate.hold()
        frontier, snapshot, state, location = published(mirror, "t")
        assert state == "live"
        database.execute(
            "ALTER TABLE t ADD COLUMN d int DEFAULT (9 + 0 * random())",
            "UPDATE t SET v = 'after' WHERE id <= 30",
            "UPDATE other SET v = 'goes on'",
        )
        mirror.await_frontier()
        await_true(lambda: published(mirror, "t")[2] == "copying", 20, "copied again")
        # A change during the copy, another change of columns, and a TRUNCATE: each starts the copy again, unseen by
        # readers.
        database.execute(
            "UPDATE t SET n = -n", "ALTER TABLE t ADD COLUMN e text DEFAULT 'e'", "DELETE FROM t WHERE id = 50"
        )
        mirror.await_frontier()
        gate.let_go(1)
        database.execute("ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 'renamed' WHERE id > 290")
        mirror.await_frontier()
        assert published(mirror, "t") == (frontier, snapshot, "copying", location)
        assert lake_rows(location) == before == mirror.lake("public.t")
        assert published(mirror, "other")[0] > frontier
        mirror.assert_equal("public.other")
    # A later pump continues where this one stopped.
    with mirror.pumping():
        database.execute("UPDATE t SET n = n - 1 WHERE id % 2 = 0", "INSERT INTO t (id) VALUES (1000)")
        mirror.await_frontier()
        assert published(mirror, "t") == (frontier, snapshot, "copying", location)
        gate.let_go()
        mirror.await_live("public.t")
        assert published(mirror, "t")[3] == mirror.location("public.t")
        mirror.await_frontier()
        assert published(mirror, "t")[0] == published(mirror, "other")[0]
        mirror.assert_equal("public.t")
        assert lake_rows(location) == before, "a reader that pinned the snapshot still reads it"
        database.execute(
            "UPDATE t SET big = 'short', e = NULL WHERE id < 100", "TRUNCATE t", "INSERT INTO t (id) VALUES (7)"
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_truncation_during_the_copy(database: Database, warehouse: str, gate: GatedCopies) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        gate.hold()
        before = mirror.heap("t")
        database.execute("ALTER TABLE t ALTER n TYPE bigint USING n * 2")
        mirror.await_frontier()
        database.execute("TRUNCATE t", "INSERT INTO t SELECT g, 'new', g FROM generate_series(1, 50) g")
        mirror.await_frontier()
        assert mirror.lake("public.t") == before
        gate.let_go()
        mirror.await_live("public.t")
        mirror.assert_equal("public.t")


@pytest.mark.further
def test_history_goes_on_over_renames_and_copies(
    database: Database, warehouse: str, spark: SparkSession, gate: GatedCopies
) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate)
    lake = lake_session(spark, database.dsn, warehouse)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        first = published(mirror, "t")[1]
        database.execute(
            "ALTER TABLE t RENAME v TO tmp; ALTER TABLE t RENAME big TO v; ALTER TABLE t RENAME tmp TO big",
            "UPDATE t SET big = 'renamed' WHERE id <= 100",
        )
        mirror.await_frontier()
        second = published(mirror, "t")[1]
        database.execute(
            "ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ALTER n TYPE bigint USING n + 0", "UPDATE t SET n = 2 ^ 40"
        )
        mirror.await_frontier()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    old = lake.sql(f"SELECT id, v, n, left(big, 1) FROM lake.public.t VERSION AS OF {first} WHERE id < 3 ORDER BY id")
    assert [tuple(row) for row in old.collect()] == [(1, "v1", 1, "x"), (2, "v2", 2, "x")]
    old = lake.sql(f"SELECT id, left(v, 1), n, big FROM lake.public.t VERSION AS OF {second} WHERE id IN (1, 101)")
    assert sorted(tuple(row) for row in old.collect()) == [(1, "x", 1, "renamed"), (101, "x", 101, "v101")]
    now = lake.sql("SELECT * FROM lake.public.t WHERE id = 1")
    assert now.columns == ["id", "big", "n"]
    assert [tuple(row) for row in now.collect()] == [(1, "renamed", 2**40)]


@pytest.mark.further
def test_what_another_engine_did_to_the_table_during_the_copy_stays(
    database: Database, warehouse: str, spark: SparkSession, gate: GatedCopies
) -> None:
    """The other engine sees the old content. Its tags, branches and properties are kept with the new one."""
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    lake = lake_session(spark, database.dsn, warehouse)
    late: list[object] = []

    def interfere(step: Step, details: dict[str, object]) -> None:
        frontier = details.get("frontier")
        if step is not Step.STAGED or frontier is None or late:
            return
        due = "SELECT 1 FROM modak.mirror_tables WHERE staged_location IS NOT NULL AND live_after_lsn <= %s"
        if database.rows(due, (frontier,)):
            late.append(frontier)
            lake.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('late' = 'yes')")

    steps = Steps(interfere)
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        lake.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('steward' = 'somebody', 'gone' = 'soon')")
        before = mirror.heap("t")
        gate.hold()
        database.execute("ALTER TABLE t ALTER n TYPE bigint USING n + 0", "UPDATE t SET n = 2 ^ 40 WHERE id < 10")
        mirror.await_frontier()
        assert mirror.state("public.t") == "copying"
        snapshot = published(mirror, "t")[1]
        lake.sql("ALTER TABLE lake.public.t CREATE TAG audit")
        lake.sql("ALTER TABLE lake.public.t CREATE BRANCH work")
        lake.sql("INSERT INTO lake.public.t.branch_work VALUES (-1, 'branch', 1, '')")
        lake.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('steward' = 'somebody else')")
        lake.sql("ALTER TABLE lake.public.t UNSET TBLPROPERTIES ('gone')")
        database.execute("UPDATE t SET n = -1 WHERE id BETWEEN 10 AND 20")
        mirror.await_frontier()
        gate.let_go()
        mirror.await_live("public.t")
        assert late, "another engine committed while the copy was made the table's content"
        assert steps.count(Step.RETRYING) == 0, "a rebase is no error"
        assert published(mirror, "t")[3] == mirror.location("public.t")
        database.execute("UPDATE t SET n = -2 WHERE id BETWEEN 15 AND 25")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    properties = {row[0]: row[1] for row in lake.sql("SHOW TBLPROPERTIES lake.public.t").collect()}
    assert (properties["steward"], properties["late"], "gone" in properties) == ("somebody else", "yes", False)
    refs = {row[0]: row[1] for row in lake.sql("SELECT name, snapshot_id FROM lake.public.t.refs").collect()}
    assert refs.keys() == {"main", "audit", "work"}
    assert refs["audit"] == snapshot
    tagged = lake.sql("SELECT * FROM lake.public.t VERSION AS OF 'audit'").collect()
    assert normalised([tuple(row) for row in tagged]) == before
    branch = lake.sql("SELECT id FROM lake.public.t VERSION AS OF 'work'").collect()
    assert {row[0] for row in branch} == {row[0] for row in before} | {-1}
    mirror.assert_sound()


@pytest.mark.further
def test_a_lake_table_that_is_gone_when_the_copy_is_complete_fails_alone(database: Database, warehouse: str) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())

    def drop(step: Step, details: dict[str, object]) -> None:
        complete = "SELECT 1 FROM modak.mirror_tables WHERE staged_location IS NOT NULL AND live_after_lsn IS NOT NULL"
        if step is Step.PUBLISHED and database.rows(complete):
            without_triggers(database, "DELETE FROM modak.iceberg_tables WHERE table_name = 't'")

    with mirror.pumping(Steps(drop)):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute("ALTER TABLE t ALTER n TYPE bigint USING n + 0")
        await_true(lambda: mirror.state("public.t") == "failed", 20, "the table fails")
        assert "dropped or renamed" in mirror.error("public.t")
        database.execute("UPDATE other SET v = 'goes on'")
        mirror.await_frontier()
        mirror.assert_equal("public.other")


@pytest.mark.further
def test_columns_change_in_the_middle_of_a_transaction_of_many_segments(database: Database, warehouse: str) -> None:
    """Unchanged large values are found across the change, wherever the row was last written."""
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=2000)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute(
            "UPDATE t SET n = 1 WHERE id <= 100; UPDATE t SET big = repeat('y', 4000) WHERE id BETWEEN 10 AND 20;"
            "ALTER TABLE t RENAME COLUMN big TO large; ALTER TABLE t RENAME COLUMN v TO big;"
            "ALTER TABLE t ADD COLUMN z int; UPDATE t SET n = 2, z = id WHERE id % 3 = 0; ALTER TABLE t DROP COLUMN z;"
            "UPDATE t SET id = id + 1000 WHERE id % 5 = 0; ALTER TABLE t ADD COLUMN z int;"
            "UPDATE t SET n = 3 WHERE n = 2"
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        assert read_duckdb(mirror.location("public.t")).column_names == ["id", "big", "n", "large", "z"]


@pytest.mark.further
def test_tables_swap_their_names(database: Database, warehouse: str) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute(
            "ALTER TABLE t RENAME TO tmp; ALTER TABLE other RENAME TO t; ALTER TABLE tmp RENAME TO other",
            "INSERT INTO t VALUES (2, 'in t')",
            "UPDATE other SET n = 0",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t", "public.other")
        # A dropped table gives its name up to another one, and stays readable.
        database.execute("DROP TABLE t", "ALTER TABLE other RENAME TO t", "UPDATE t SET n = 1")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
        await_true(lambda: mirror.state("public.t__former") == "dropped", 20, "the former t is dropped")
        assert mirror.state("public.other") == ""
    assert len(lake_rows(mirror.location("public.t__former"))) == 2


@pytest.mark.further
def test_unchanged_large_values_are_read_from_a_heap_that_is_further_than_the_stream(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    """During a copy they are read from the heap. By the time the stream is applied, its columns may have changed."""
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    gate.hold()
    with mirror.pumping():
        mirror.register("t", "other")
    database.execute(
        "UPDATE t SET n = -1 WHERE id <= 50",
        "ALTER TABLE t RENAME COLUMN big TO large; ALTER TABLE t RENAME COLUMN v TO big",
        "UPDATE t SET n = -2 WHERE id BETWEEN 40 AND 60",
        "ALTER TABLE t RENAME TO moved",
        "ALTER TABLE moved RENAME COLUMN id TO ident",
        "UPDATE moved SET n = -3 WHERE ident BETWEEN 45 AND 70",
        "ALTER TABLE moved ADD COLUMN extra text DEFAULT 'x'",
        "UPDATE moved SET n = -4 WHERE ident = 1",
        "ALTER TABLE moved DROP COLUMN big",
        "UPDATE moved SET n = -5 WHERE ident = 2",
    )
    with mirror.pumping():
        mirror.await_frontier()
        gate.let_go()
        mirror.await_live("public.moved")
        mirror.await_frontier()
        mirror.assert_equal("public.moved")
    mirror.assert_sound()


@pytest.mark.further
def test_a_table_without_a_key_holds_up_no_other(database: Database, warehouse: str) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "other")
    mirror.catch_up()
    before = mirror.heap("t")
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t (id) VALUES (7), (7)", "UPDATE other SET v = 'x'"
    )
    steps = Steps()
    mirror.catch_up(steps)
    assert (mirror.state("public.t"), mirror.lake("public.t")) == ("waiting", before)
    mirror.assert_equal("public.other")
    assert steps.details(Step.TABLE_WAITING, "table") == ["public.t"]
    assert steps.count(Step.TABLE_COPIED_AGAIN) == 0, "it is not copied yet"
    # A reader that waits for the copy gets the error, too.
    (outcome,) = register(mirror.settings, ["t"], wait=True, on_progress=lambda _: None)
    assert "give it a key again" in str(outcome.error)
    with StatusReader(mirror.settings) as reader:
        status = reader.read()
    (alert,) = [alert for alert in status.alerts if alert.table == "public.t"]
    assert alert.severity is Severity.CRITICAL
    assert "no primary key" in alert.message
    assert "give it a key again, and it is copied again by itself" in alert.message
    (shown,) = [table for table in status.tables if table.table == "public.t"]
    assert (shown.state, shown.note) == (TableState.WAITING, None)
    assert shown.lag_bytes
    announcements = "SELECT noted_at FROM modak.mirror_shapes ORDER BY table_id"
    before_that = database.rows(announcements)
    with mirror.pumping():
        mirror.await_frontier()
        assert mirror.state("public.t") == "waiting"
    assert database.rows(announcements) == before_that, "the stream is not notified again and again"
    database.execute("TRUNCATE t", "INSERT INTO t (id) VALUES (7), (8)", "ALTER TABLE t ADD PRIMARY KEY (id)")
    with StatusReader(mirror.settings) as reader:
        status = reader.read()
    (shown,) = [table for table in status.tables if table.table == "public.t"]
    assert shown.error is None, "its owner has done what there was to do"
    assert "once the transactions" in (shown.note or "")
    mirror.catch_up(steps)
    (reason,) = steps.details(Step.TABLE_COPIED_AGAIN, "reason")
    assert "no primary key" in reason, "the log says why"
    mirror.assert_equal("public.t")
    mirror.assert_sound()
    assert database.rows("SELECT error FROM modak.mirror_tables WHERE error IS NOT NULL") == []


@pytest.mark.further
def test_a_lake_table_that_another_engine_gave_columns_fails_alone(
    database: Database, warehouse: str, spark: SparkSession
) -> None:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        lake_session(spark, database.dsn, warehouse).sql("ALTER TABLE lake.public.t ADD COLUMN foreign_one bigint")
        database.execute(
            "UPDATE t SET v = 'x' WHERE id = 1", "ALTER TABLE t ADD COLUMN z text", "UPDATE other SET v = 'x'"
        )
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.t") == "failed", 20, "the table fails")
        assert "no other engine may alter" in mirror.error("public.t")
        mirror.assert_equal("public.other")
        database.execute("UPDATE t SET z = 'y'", "UPDATE other SET v = 'z'")
        mirror.await_frontier()
        mirror.assert_equal("public.other")


@pytest.mark.further
def test_a_table_that_was_a_partition_of_another_for_a_moment_fails(database: Database, warehouse: str) -> None:
    """Meanwhile, its changes are in the stream as the other table's."""
    database.execute(
        "CREATE TABLE one (id int PRIMARY KEY, v text)",
        "CREATE TABLE two (id int PRIMARY KEY, v text)",
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "INSERT INTO one VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO two VALUES (11, 'a'), (12, 'b')",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("one", "two", "p")
        mirror.await_live("public.one", "public.two", "public.p")
        mirror.await_frontier()
        with database.connect(autocommit=False) as connection:
            connection.execute("ALTER TABLE p ATTACH PARTITION one FOR VALUES FROM (0) TO (10)")
            connection.execute("UPDATE one SET v = 'x'")
            connection.execute("ALTER TABLE p DETACH PARTITION one")
        database.execute(
            "ALTER TABLE p ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
            "UPDATE two SET v = 'x'",
            "ALTER TABLE p DETACH PARTITION two",
        )
        mirror.await_frontier()
        for name in ("public.one", "public.two"):
            await_true(lambda name=name: mirror.state(name) == "failed", 20, f"{name} fails")  # type: ignore[misc]
            assert "is a partition" in mirror.error(name)
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"], id="label", marks=pytest.mark.further),
        pytest.param(
            ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'"],
            id="label there and back",
        ),
        pytest.param(["ALTER TYPE pair ADD ATTRIBUTE z int"], id="attribute", marks=pytest.mark.further),
    ],
)
def test_a_type_changes_under_transactions_that_have_written_to_the_table(
    database: Database, warehouse: str, changes: list[str]
) -> None:
    """ALTER TYPE takes no lock on the table: rows written before follow it in the stream, printed as they were then."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE TYPE pair AS (x int, y int)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, c pair)",
        "INSERT INTO t SELECT g, 'ok', ROW(g, g)::pair FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping(), ExitStack() as leaving:
        mirror.register("t")
        mirror.await_live("public.t")
        writers = []
        for number, change in enumerate(changes, start=100):
            writers.append(leaving.enter_context(database.connect(autocommit=False)))
            writers[-1].execute("INSERT INTO t VALUES (%s, (enum_range(NULL::mood))[1], ROW(1, 1)::pair)", (number,))
            with database.connect() as connection:
                connection.execute(change.encode())
            mirror.await_frontier()
            database.execute("UPDATE t SET m = 'bad' WHERE id < 10")
        for writer in writers:
            mirror.await_frontier()
            assert mirror.state("public.t") in ("waiting", "copying"), "all that wrote before have to end"
            writer.commit()
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    mirror.assert_sound()


_NO_HISTORY = (
    "UPDATE modak.tables SET maintenance_policy ="
    """ '{"history_newest": 1, "history_minutes_hours": 0, "history_hours_hours": 0}'"""
)


_PIN = (
    "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
    " SELECT table_id, lake_snapshot_id, 0, now() + interval '1 hour' FROM modak.cutline"
)


@pytest.mark.further
def test_the_published_snapshot_outlives_the_commits_of_a_repeated_copy(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    """Readers are told to pin it until the copy is complete, however many commits the copy takes."""
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute(_NO_HISTORY)
        gate.hold()
        snapshot = published(mirror, "t")[1]
        database.execute("ALTER TABLE t ADD COLUMN d int DEFAULT (9 + 0 * random())")
        for turn in range(3):
            database.execute(f"UPDATE t SET n = {turn}")
            mirror.await_frontier()
        assert published(mirror, "t")[1:3] == (snapshot, "copying")
        database.execute(_PIN)
        gate.let_go()
        mirror.await_live("public.t")
        assert published(mirror, "t")[1] != snapshot
        # Readers that pinned it read it through the catalog.
        assert LakeTable.load(mirror.location("public.t"), StorageOptions()).has_snapshot(snapshot)
        mirror.assert_equal("public.t")
