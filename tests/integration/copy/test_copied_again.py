"""Tables that are copied again: the old content stays at its old F, the new one appears whole, and history goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mirror_pump.config import Settings
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Severity
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.connect import connect
from mirror_pump.source.relations.change_notes import note_changes
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONED = (
    "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    "INSERT INTO p SELECT generate_series(0, 19)",
)
_TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n int, big text)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT g, 'v' || g, g, repeat('x', 3000) || g FROM generate_series(1, 300) g",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other VALUES (1, 'one')",
)


@pytest.fixture
def gate() -> Iterator[GatedCopies]:
    threads = ThreadTaskRunner()
    yield GatedCopies(threads)
    threads.close()


def _published(mirror: Mirror, table: str) -> tuple[Any, ...]:
    """F, S and state of a table, and whether the pointer is S's."""
    return mirror.database.rows(
        "SELECT c.replicated_lsn, c.lake_snapshot_id, m.state, c.lake_props ->> 'metadata_location'"
        "  FROM modak.cutline c JOIN modak.mirror_tables m USING (table_id) JOIN modak.tables t USING (table_id)"
        " WHERE t.table_name = %s",
        (table,),
    )[0]


def test_the_old_content_stays_at_its_old_f_until_the_new_one_is_complete(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute("UPDATE t SET v = 'before' WHERE id <= 20", "DELETE FROM t WHERE id = 21")
        mirror.await_frontier()
        before = mirror.heap("t")
        gate.hold()
        frontier, snapshot, state, location = _published(mirror, "t")
        assert state == "live"
        database.execute(
            "ALTER TABLE t ADD COLUMN d int DEFAULT (9 + 0 * random())",
            "UPDATE t SET v = 'after' WHERE id <= 30",
            "UPDATE other SET v = 'goes on'",
        )
        mirror.await_frontier()
        await_true(lambda: _published(mirror, "t")[2] == "copying", 20, "copied again")
        # A change during the copy, one more change of columns, and a truncation: each begins it anew, unseen.
        database.execute(
            "UPDATE t SET n = -n", "ALTER TABLE t ADD COLUMN e text DEFAULT 'e'", "DELETE FROM t WHERE id = 50"
        )
        mirror.await_frontier()
        gate.let_go(1)
        database.execute("ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 'renamed' WHERE id > 290")
        mirror.await_frontier()
        assert _published(mirror, "t") == (frontier, snapshot, "copying", location)
        assert lake_rows(location) == before == mirror.lake("public.t")
        assert _published(mirror, "other")[0] > frontier
        mirror.assert_equal("public.other")
    # A pump that comes later goes on where this one stopped.
    with mirror.pumping():
        database.execute("UPDATE t SET n = n - 1 WHERE id % 2 = 0", "INSERT INTO t (id) VALUES (1000)")
        mirror.await_frontier()
        assert _published(mirror, "t") == (frontier, snapshot, "copying", location)
        gate.let_go()
        mirror.await_live("public.t")
        assert _published(mirror, "t")[3] == mirror.location("public.t")
        mirror.await_frontier()
        assert _published(mirror, "t")[0] == _published(mirror, "other")[0]
        mirror.assert_equal("public.t")
        assert lake_rows(location) == before, "who pinned S reads on"
        database.execute(
            "UPDATE t SET big = 'short', e = NULL WHERE id < 100", "TRUNCATE t", "INSERT INTO t (id) VALUES (7)"
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_truncation_during_the_copy(database: Database, warehouse: str, gate: GatedCopies) -> None:
    database.execute(*_TABLES)
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


def test_history_goes_on_over_renames_and_copies(
    database: Database, warehouse: str, spark: SparkSession, gate: GatedCopies
) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, gate)
    lake = lake_session(spark, database.dsn, warehouse)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        first = _published(mirror, "t")[1]
        database.execute(
            "ALTER TABLE t RENAME v TO tmp; ALTER TABLE t RENAME big TO v; ALTER TABLE t RENAME tmp TO big",
            "UPDATE t SET big = 'renamed' WHERE id <= 100",
        )
        mirror.await_frontier()
        second = _published(mirror, "t")[1]
        database.execute("ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ALTER n TYPE bigint", "UPDATE t SET n = 2 ^ 40")
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


def test_what_another_engine_did_to_the_table_during_the_copy_stays(
    database: Database, warehouse: str, spark: SparkSession, gate: GatedCopies
) -> None:
    """It sees the old content, and its tags, branches and properties go on with the new one."""
    database.execute(*_TABLES)
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
        database.execute("ALTER TABLE t ALTER n TYPE bigint", "UPDATE t SET n = 2 ^ 40 WHERE id < 10")
        mirror.await_frontier()
        assert mirror.state("public.t") == "copying"
        snapshot = _published(mirror, "t")[1]
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
        assert _published(mirror, "t")[3] == mirror.location("public.t")
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


def test_a_lake_table_that_is_gone_when_the_copy_is_complete_is_set_aside_alone(
    database: Database, warehouse: str
) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())

    def drop(step: Step, details: dict[str, object]) -> None:
        complete = "SELECT 1 FROM modak.mirror_tables WHERE staged_location IS NOT NULL AND live_after_lsn IS NOT NULL"
        if step is Step.PUBLISHED and database.rows(complete):
            database.execute("DELETE FROM modak.iceberg_tables WHERE table_name = 't'")

    with mirror.pumping(Steps(drop)):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        database.execute("ALTER TABLE t ALTER n TYPE bigint")
        await_true(lambda: mirror.state("public.t") == "failed", 20, "set aside")
        assert "dropped or renamed" in mirror.error("public.t")
        database.execute("UPDATE other SET v = 'goes on'")
        mirror.await_frontier()
        mirror.assert_equal("public.other")


def test_columns_change_in_the_middle_of_a_transaction_of_many_segments(database: Database, warehouse: str) -> None:
    """Unchanged large values are found across the change, wherever the row was last written."""
    database.execute(*_TABLES)
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


def test_tables_swap_their_names(database: Database, warehouse: str) -> None:
    database.execute(*_TABLES)
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
        # The name of a table that was dropped is not free before that is unregistered.
        database.execute("DROP TABLE t", "ALTER TABLE other RENAME TO t", "UPDATE t SET n = 1")
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.t") == "failed", 20, "the dropped table is set aside")
        assert mirror.state("public.other") == "live"
        assert lake_rows(mirror.location("public.other")) == mirror.heap("t")
    assert len(lake_rows(mirror.location("public.t"))) == 2


_UNTOLD = (
    "ALTER TABLE t RENAME COLUMN v TO w",
    "ALTER TABLE t RENAME COLUMN v TO tmp; ALTER TABLE t RENAME COLUMN big TO v; ALTER TABLE t RENAME tmp TO big",
    "ALTER TABLE t ADD COLUMN d int DEFAULT 9",
    "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text",
    "ALTER TABLE t ALTER n TYPE int USING -n",
    "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (n)",
    "VACUUM FULL t",
    "TRUNCATE t",
)


@pytest.mark.parametrize("rows_change", [False, True])
def test_without_event_triggers_changes_are_found_and_the_table_copied_again(
    database: Database, warehouse: str, rows_change: bool
) -> None:
    numbers = range(len(_UNTOLD))
    for number in numbers:
        with database.connect() as connection:
            connection.execute(f"CREATE SCHEMA s{number}; SET search_path = s{number}".encode())
            for statement in _TABLES[:3]:
                connection.execute(statement.encode())
    steps = Steps()
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    database.execute(
        "DROP EVENT TRIGGER mirror_pump_ddl",
        "DROP EVENT TRIGGER mirror_pump_drop",
        "DROP EVENT TRIGGER mirror_pump_rewrite",
    )
    with mirror.pumping(steps):
        names = [f"s{number}.t" for number in numbers]
        mirror.register(*names)
        mirror.await_live(*names)
        mirror.await_frontier()
        for number, change in enumerate(_UNTOLD):
            with database.connect() as connection:
                connection.execute(f"SET search_path = s{number}".encode())
                if rows_change:
                    connection.execute("UPDATE t SET n = n + 1000 WHERE id % 3 = 0")
                connection.execute(change.encode())
                if rows_change:
                    connection.execute("UPDATE t SET n = n + 2000 WHERE id % 3 = 1")
                    connection.execute("DELETE FROM t WHERE id % 7 = 0")

        def agrees(name: str) -> bool:
            return mirror.state(name) == "live" and mirror.heap(name) == mirror.lake(name)

        for name in names:
            await_true(lambda name=name: agrees(name), 60, f"{name} as the heap is")  # type: ignore[misc]
        mirror.await_frontier()
        mirror.assert_equal(*names)
    copied = {str(table) for table in steps.details(Step.TABLE_COPIED_AGAIN, "table")}
    assert {"s2.t", "s3.t", "s4.t", "s5.t"} <= copied
    mirror.assert_sound()


_UNHEARD = (
    """
    ALTER EVENT TRIGGER mirror_pump_rewrite DISABLE;
    ALTER TABLE t ALTER n TYPE int USING n + 1000;
    ALTER EVENT TRIGGER mirror_pump_rewrite ENABLE ALWAYS
    """,
    "SET event_triggers = off; ALTER TABLE t ALTER n TYPE int USING n + 2000; RESET event_triggers",
)


def test_a_rewrite_while_an_event_trigger_is_off_is_known_by_what_it_leaves(database: Database, warehouse: str) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        mirror.await_frontier()
        for copies, unheard in enumerate(_UNHEARD, start=1):
            database.execute(unheard)
            await_true(lambda copies=copies: steps.count(Step.TABLE_COPIED_AGAIN) == copies, 20, unheard)  # type: ignore[misc]
            mirror.await_live("public.t")
            mirror.await_frontier()
            mirror.assert_equal("public.t")
        # What leaves every value as it was.
        database.execute(
            "ALTER TABLE other ADD COLUMN z int DEFAULT 7",
            f"GRANT SELECT (id, v) ON t TO {database.rows('SELECT current_user::regrole::text')[0][0]}",
            "VACUUM FREEZE pg_attribute",
            "VACUUM FULL pg_attribute",
        )
        await_true(lambda: steps.count(Step.TABLE_FILLING) == 1, 20, "other, for its default")
        mirror.await_live("public.other")
        database.execute("VACUUM FULL other", "ALTER TABLE t ADD COLUMN y int")
        told = "SELECT count(*) FROM modak.mirror_shapes s WHERE s.shape = modak.mirror_shape(s.table_id::oid)"
        await_true(lambda: database.rows(told) == [(2,)], 20, "looked at")
        database.execute("INSERT INTO t (id, y) VALUES (1000, 1)", "UPDATE other SET v = 'u'")
        mirror.await_frontier()
        assert steps.count(Step.TABLE_COPIED_AGAIN) == 2, steps.details(Step.TABLE_COPIED_AGAIN, "reason")
        mirror.assert_equal("public.t", "public.other")
    mirror.assert_sound()


@pytest.mark.parametrize(
    ("part", "untold"), [("p1", "SET event_triggers = off"), ("s", "DROP EVENT TRIGGER mirror_pump_ddl")]
)
def test_a_partition_that_was_detached_for_a_moment_untold_is_known_by_what_that_leaves(
    database: Database, warehouse: str, part: str, untold: str
) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE s PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE s1 PARTITION OF s FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT generate_series(0, 19)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    if untold.startswith("DROP"):
        database.execute(untold)
    with mirror.pumping() as pump:
        mirror.register("p")
        mirror.await_live("public.p")
        mirror.await_frontier()
        bounds = "(0) TO (10)" if part == "p1" else "(10) TO (20)"
        with database.connect(autocommit=False) as connection:
            if untold.startswith("SET"):
                connection.execute(untold.encode())
            connection.execute(f"ALTER TABLE p DETACH PARTITION {part}; DELETE FROM {part} WHERE id % 2 = 0".encode())
            connection.execute(f"ALTER TABLE p ATTACH PARTITION {part} FOR VALUES FROM {bounds}".encode())
        await_true(lambda: pump.steps.count(Step.TABLE_COPIED_AGAIN), 20, "copied again")
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


def test_a_table_that_is_locked_keeps_the_stream_from_hearing_of_no_other(database: Database, warehouse: str) -> None:
    """A prepared ALTER TABLE may stay for hours."""
    database.execute(*_TABLES, "CREATE TABLE last (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "other", "last")
    database.execute(
        "DROP EVENT TRIGGER mirror_pump_ddl",
        "ALTER TABLE t ADD COLUMN x int",
        "ALTER TABLE other ADD COLUMN x int",
        "ALTER TABLE last ADD COLUMN x int",
    )
    with (
        connect(database.dsn, autocommit=True) as looking,
        database.connect(autocommit=False) as altering,
        altering.transaction(),
    ):
        altering.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
        assert note_changes(looking, mirror.settings.slot) == 2
        assert note_changes(looking, mirror.settings.slot) == 0
    with connect(database.dsn, autocommit=True) as looking:
        assert note_changes(looking, mirror.settings.slot) == 1
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.other", "public.last")


def test_unchanged_large_values_are_read_from_a_heap_that_is_further_than_the_stream(
    database: Database, warehouse: str, gate: GatedCopies
) -> None:
    """During a copy the heap is asked for them; by the time the stream is applied, its columns may be others."""
    database.execute(*_TABLES)
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


def test_a_table_without_a_key_keeps_nobody_waiting(database: Database, warehouse: str) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "other")
    mirror.catch_up()
    before = mirror.heap("t")
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t (id) VALUES (7), (7)", "UPDATE other SET v = 'x'"
    )
    mirror.catch_up()
    assert (mirror.state("public.t"), mirror.lake("public.t")) == ("copying", before)
    mirror.assert_equal("public.other")
    with StatusReader(mirror.settings) as reader:
        status = reader.read()
    (alert,) = [alert for alert in status.alerts if alert.table == "public.t"]
    assert alert.severity is Severity.CRITICAL
    assert "no primary key" in alert.message
    assert "give it a key again, and it is copied again by itself" in alert.message
    told = "SELECT told_at FROM modak.mirror_shapes ORDER BY table_id"
    before_that = database.rows(told)
    with mirror.pumping():
        mirror.await_frontier()
        assert mirror.state("public.t") == "copying"
    assert database.rows(told) == before_that, "the stream is not told again and again"
    database.execute("TRUNCATE t", "INSERT INTO t (id) VALUES (7), (8)", "ALTER TABLE t ADD PRIMARY KEY (id)")
    mirror.catch_up()
    mirror.assert_equal("public.t")
    mirror.assert_sound()
    assert database.rows("SELECT error FROM modak.mirror_tables WHERE error IS NOT NULL") == []


def test_a_second_init_watches_what_is_not_watched(database: Database, warehouse: str) -> None:
    database.execute(*_PARTITIONED)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("p")
    mirror.catch_up()
    triggers = "SELECT tgrelid::regclass::text, tgenabled::text FROM pg_trigger WHERE tgname LIKE 'mirror%%' ORDER BY 1"
    watched = [("p1", "A"), ("p2", "A")]
    assert database.rows(triggers) == watched
    database.execute("DROP TRIGGER mirror_pump_truncate ON p2", "ALTER EVENT TRIGGER mirror_pump_ddl DISABLE")
    said: list[str] = []
    initialise(mirror.settings, said.append)
    assert database.rows(triggers) == watched
    assert "event triggers: schema changes are followed where they happen" in said
    assert database.rows("SELECT count(*) FROM pg_event_trigger WHERE evtenabled = 'A'") == [(3,)]
    database.execute("TRUNCATE p2")
    mirror.catch_up()
    mirror.assert_equal("public.p")
    mirror.unregister("p")
    assert database.rows(triggers) == []


def test_a_partition_that_was_truncated_while_nobody_watched_is_copied_again(
    database: Database, warehouse: str
) -> None:
    """Its trigger is gone for a moment, untold: then its file is compared."""
    database.execute(*_PARTITIONED)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("p")
        mirror.await_live("public.p")
        mirror.await_frontier()
        with database.connect(autocommit=False) as connection:
            connection.execute("DROP TRIGGER mirror_pump_truncate ON p1")
            connection.execute("TRUNCATE p1")
        await_true(lambda: steps.count(Step.TABLE_COPIED_AGAIN), 20, "copied again")
        watched = "SELECT count(*) FROM pg_trigger WHERE tgname = 'mirror_pump_truncate' AND tgenabled = 'A'"
        await_true(lambda: database.rows(watched) == [(2,)], 20, "watched again")
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


def test_a_role_that_may_not_create_event_triggers_is_told_so(database: Database, warehouse: str) -> None:
    role = f"r_{database.name}"[:60]
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN REPLICATION PASSWORD 'x'".encode())
        try:
            connection.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}"'.encode())
            said: list[str] = []
            dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role, password="x")
            settings = Settings(dsn=dsn, warehouse=warehouse, slot=f"s_{database.name}"[:60], storage_fsync=False)
            initialise(settings, said.append)
            assert any("may not create event triggers" in line for line in said), said
            assert database.rows("SELECT count(*) FROM pg_event_trigger") == [(0,)]
        finally:
            connection.execute(f'DROP OWNED BY "{role}" CASCADE'.encode())
            connection.execute(f'DROP ROLE "{role}"'.encode())


def test_a_table_that_another_role_owns_now_is_set_aside_alone(database: Database, warehouse: str) -> None:
    """Nor can the pump lock it then."""
    role = f"r_{database.name}"[:60]
    with database.connect() as connection:

        def run(*statements: str) -> None:
            for statement in statements:
                connection.execute(statement.replace("pump_role", f'"{role}"').encode())

        run(
            "CREATE ROLE pump_role LOGIN REPLICATION PASSWORD 'x'",
            f'GRANT CREATE ON DATABASE "{database.name}" TO pump_role',
        )
        try:
            for name in ("a", "b"):
                run(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"ALTER TABLE {name} OWNER TO pump_role")
            dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role, password="x")
            mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), dsn=dsn)
            run("GRANT ALL ON SCHEMA audit TO pump_role", "GRANT ALL ON ALL TABLES IN SCHEMA audit TO pump_role")
            run("GRANT ALL ON ALL SEQUENCES IN SCHEMA audit TO pump_role")
            assert database.rows("SELECT count(*) FROM pg_event_trigger") == [(0,)]
            with mirror.pumping():
                mirror.register("a", "b")
                mirror.await_live("public.a", "public.b")
                run("ALTER TABLE a OWNER TO postgres", "INSERT INTO b VALUES (1)")
                await_true(lambda: mirror.state("public.a") == "failed", 90, "set aside")
                assert "does not own public.a" in mirror.error("public.a")
            # Nor is a later start in the way of the other.
            with mirror.pumping():
                run("INSERT INTO b VALUES (2)")
                mirror.await_frontier()
                mirror.assert_equal("public.b")
            mirror.assert_sound()
        finally:
            run("DROP OWNED BY pump_role CASCADE", "DROP ROLE pump_role")


def test_a_lake_table_that_another_engine_gave_columns_is_set_aside_alone(
    database: Database, warehouse: str, spark: SparkSession
) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t", "other")
        mirror.await_live("public.t", "public.other")
        lake_session(spark, database.dsn, warehouse).sql("ALTER TABLE lake.public.t ADD COLUMN foreign_one bigint")
        database.execute(
            "UPDATE t SET v = 'x' WHERE id = 1", "ALTER TABLE t ADD COLUMN z text", "UPDATE other SET v = 'x'"
        )
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.t") == "failed", 20, "set aside")
        assert "no other engine may alter" in mirror.error("public.t")
        mirror.assert_equal("public.other")
        database.execute("UPDATE t SET z = 'y'", "UPDATE other SET v = 'z'")
        mirror.await_frontier()
        mirror.assert_equal("public.other")


def test_a_trigger_that_fails_says_so_and_the_table_is_copied_again(database: Database, warehouse: str) -> None:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping() as pump:
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        # Another transaction has told of the table since this one's snapshot: it cannot note its own change.
        with database.connect(autocommit=False) as late:
            late.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            late.execute("SELECT 1")
            database.execute("ALTER TABLE t ADD COLUMN z int")
            late.execute("ALTER TABLE t ADD COLUMN y int DEFAULT 5")
            late.execute("UPDATE t SET n = -n WHERE id < 10")
            late.commit()
        mirror.await_frontier()
        # Twice, unless a busy machine has both in one batch.
        await_true(lambda: pump.steps.count(Step.TABLE_COPIED_AGAIN), 20, "stalled, then copied again")
        mirror.await_live("public.t")
        mirror.await_frontier()
        mirror.assert_equal("public.t")


def test_a_table_that_was_another_ones_partition_for_a_moment_is_set_aside(database: Database, warehouse: str) -> None:
    """Its changes are the other's meanwhile."""
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
            await_true(lambda name=name: mirror.state(name) == "failed", 20, f"{name} set aside")  # type: ignore[misc]
            assert "is a partition" in mirror.error(name)
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_cannot_see_the_registration_changes_the_table(
    database: Database, warehouse: str, level: str
) -> None:
    database.execute(
        *_TABLES,
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE q (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p SELECT generate_series(0, 9)",
        "INSERT INTO q SELECT generate_series(0, 9)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    names = ["public.t", "public.p", "public.q"]
    with mirror.pumping() as pump, database.connect(autocommit=False) as late:
        late.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        late.execute("SELECT 1")
        mirror.register(*names)
        mirror.await_live(*names)
        mirror.await_frontier()
        late.execute("ALTER TABLE t ALTER n TYPE int USING n + 1000")
        late.execute("TRUNCATE p1")
        late.execute("ALTER TABLE q DETACH PARTITION q1; DELETE FROM q1 WHERE id < 5")
        late.execute("ALTER TABLE q ATTACH PARTITION q1 FOR VALUES FROM (0) TO (10)")
        late.execute("ALTER TABLE other ADD COLUMN z int")
        late.commit()
        mirror.await_frontier()
        await_true(
            lambda: set(pump.steps.details(Step.TABLE_COPIED_AGAIN, "table")) == {"public.t", "public.q"},
            20,
            "copied again",
        )
        # What a TRUNCATE takes is known.
        await_true(lambda: pump.steps.details(Step.TABLE_FILLING, "table") == ["public.p"], 20, "filled")
        mirror.await_live(*names)
        mirror.await_frontier()
        mirror.assert_equal(*names)
    mirror.assert_sound()


@pytest.mark.parametrize(
    "changes",
    [
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"],
        ["ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'"],
        ["ALTER TYPE pair ADD ATTRIBUTE z int"],
    ],
    ids=["label", "label there and back", "attribute"],
)
def test_a_type_changes_under_transactions_that_have_written_to_the_table(
    database: Database, warehouse: str, changes: list[str]
) -> None:
    """It takes no lock on the table: what was written before comes in the stream behind it, as it was printed then."""
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
            assert mirror.state("public.t") == "copying", "not live before all have ended that wrote before"
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


def test_s_outlives_the_commits_of_a_copy_again(database: Database, warehouse: str, gate: GatedCopies) -> None:
    """It is what readers are told to pin until the copy is complete, however many commits that takes."""
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute(_NO_HISTORY)
        gate.hold()
        snapshot = _published(mirror, "t")[1]
        database.execute("ALTER TABLE t ADD COLUMN d int DEFAULT (9 + 0 * random())")
        for turn in range(3):
            database.execute(f"UPDATE t SET n = {turn}")
            mirror.await_frontier()
        assert _published(mirror, "t")[1:3] == (snapshot, "copying")
        database.execute(_PIN)
        gate.let_go()
        mirror.await_live("public.t")
        assert _published(mirror, "t")[1] != snapshot
        # Who pinned it reads it through the catalog.
        assert LakeTable.load(mirror.location("public.t"), StorageOptions()).has_snapshot(snapshot)
        mirror.assert_equal("public.t")
