"""Repairs: rows of the lake that differ are replaced, at the frontier, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, LiteralString

import orjson
import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import SourceError
from mirror_pump.model import MirroredTable
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.repair import RepairPhase, TableRepair, repair
from mirror_pump.ops.verify.requested_repairs import repair_where_different, verify_and_repair
from mirror_pump.ops.verify.verification import verify
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.source.relations.column_choices import ColumnChoices, parse_choices
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.testing.database import Database
from mirror_pump.testing.drift import drift
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.events_table import RetentionTables
from tests.support.partitioned_orders import assert_divided
from tests.support.pipeline import writing
from tests.support.resyncs import drop_slot, resynced

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(6, 2))",
    "INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 500) g",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other SELECT g, 'v' FROM generate_series(1, 20) g",
)


def mirrored(mirror: Mirror, *names: str) -> list[MirroredTable]:
    with connect(mirror.settings.require_dsn(), autocommit=True) as connection:
        tables = [load_table(connection, resolve_name(connection, name)[1]) for name in names]
    return [table for table in tables if table is not None]


@dataclass(frozen=True)
class DigestingRunner:
    """A runner that calls a function before heap or files are digested."""

    runner: TaskRunner
    before: Callable[[], None]

    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]:
        self.before()
        return self.runner.submit(function, task)


def repaired(mirror: Mirror, name: str, *, dry_run: bool = False) -> TableRepair:
    (result,) = repair(mirror.settings, mirrored(mirror, name), dry_run=dry_run)
    return result


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "other")
    mirror.catch_up()
    return mirror


def test_missing_extra_different_and_doubled_rows_are_replaced(mirror: Mirror) -> None:
    drift(
        mirror.settings,
        "t",
        removed=[("1",), ("2",), ("3",)],
        added=[("2", "wrong", "2"), ("900", "extra", None), ("10", "v10", "10"), ("11", "v11", "NaN")],
    )
    with mirror.pumping():
        found = repaired(mirror, "t", dry_run=True)
        assert (found.missing, found.extra, found.different, found.repaired) == (2, 1, 3, False)
        before = mirror.frontier()
        done = repaired(mirror, "t")
        assert done.error is None
        assert (done.missing, done.extra, done.different, done.repaired) == (2, 1, 3, True)
        assert (done.heap_rows, done.lake_rows) == (500, 501)
        assert done.frontier is not None
        assert before <= done.frontier <= mirror.frontier()
        mirror.database.execute("UPDATE t SET v = 'later' WHERE id IN (1, 2, 3, 10, 11)", "DELETE FROM t WHERE id = 2")
        mirror.await_frontier()
    mirror.assert_equal("public.t", "public.other")


def test_what_the_stream_brings_during_a_comparison_wins(mirror: Mirror) -> None:
    """Between the compared frontier and the publish: an update, a delete, a change of the key, a large value that is
    not sent again."""
    database = mirror.database
    database.execute(
        "UPDATE t SET v = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g) WHERE id = 4"
    )
    mirror.catch_up()
    wrong = [(str(key), "wrong", "0.00") for key in (1, 2, 3, 4)]
    drift(mirror.settings, "t", removed=[(key,) for key, _, _ in wrong], added=wrong)
    changed: list[bool] = []

    def change() -> None:
        if not changed:
            changed.append(True)
            database.execute(
                "UPDATE t SET v = 'newer' WHERE id = 1",
                "DELETE FROM t WHERE id = 2",
                "UPDATE t SET id = 1003 WHERE id = 3",
                "UPDATE t SET n = 17 WHERE id = 4",
                "INSERT INTO t VALUES (1002, 'new', 1)",
            )
            mirror.await_frontier()

    runner = DigestingRunner(ThreadTaskRunner(), change)
    with mirror.pumping():
        (done,) = repair(mirror.settings, mirrored(mirror, "t"), runner=runner)
        assert (done.error, done.different, done.missing, done.extra) == (None, 4, 0, 0)
        mirror.await_frontier()
    assert changed
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
def test_repairs_under_load_end_equal(mirror: Mirror) -> None:
    """Writers change the very rows that are repaired, all the time."""
    database = mirror.database
    database.execute("INSERT INTO t SELECT g, repeat(md5(g::text), 200), 1 FROM generate_series(501, 520) g")
    stop = threading.Event()

    def write() -> None:
        random = Random(7)
        with database.connect() as connection:
            while not stop.is_set():
                key = random.randrange(500, 560)
                match random.randrange(4):
                    case 0:
                        connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (key,))
                    case 1:
                        connection.execute("DELETE FROM t WHERE id = %s", (key,))
                    case 2:
                        text = str(random.random()) * 300
                        connection.execute("INSERT INTO t VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (key, text))
                    case _:
                        moved = "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)"
                        connection.execute(moved, (key + 1, key, key + 1))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with mirror.pumping():
            for number in range(8):
                keys = [(str(key),) for key in range(500, 560)]
                drift(mirror.settings, "t", removed=keys, added=[(key, f"wrong {number}", "9") for (key,) in keys[::2]])
                done = repaired(mirror, "t")
                assert done.error is None
                assert done.repaired
            stop.set()
            writer.join()
            mirror.await_frontier()
            assert repaired(mirror, "t").differing == 0
    finally:
        stop.set()
        writer.join()
    mirror.assert_equal("public.t", "public.other")


def test_what_is_published_between_writing_and_the_lock_wins(mirror: Mirror) -> None:
    database = mirror.database
    wrong = [(str(key), "wrong", "0.00") for key in (1, 2, 3)]
    drift(mirror.settings, "t", removed=[(key,) for key, _, _ in wrong], added=wrong)
    phases = []

    def observe(progress: TableProgress) -> None:
        phases.append(progress.step)
        if progress.step == RepairPhase.REPAIRING:
            database.execute("UPDATE t SET v = 'newer' WHERE id = 1", "DELETE FROM t WHERE id = 2")
            mirror.await_frontier()

    with mirror.pumping():
        (done,) = repair(mirror.settings, mirrored(mirror, "t"), observe=observe)
        mirror.await_frontier()
    assert done.repaired
    assert phases == ["comparing", "repairing", "done"]
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
def test_keys_and_values_of_many_types(mirror: Mirror) -> None:
    """Keys of several columns, of which the lake's values are printed to find the heap's rows; values that need a raw
    text column; a partitioned heap."""
    database = mirror.database
    database.execute(
        "CREATE TABLE keys (d date, u uuid, b bytea, x numeric(8, 2), t timestamptz, s text, c char(4),"
        " v numeric(6, 2), l int[], j jsonb, PRIMARY KEY (d, u, b, x, t, s, c)) PARTITION BY RANGE (d)",
        "CREATE TABLE keys_old PARTITION OF keys FOR VALUES FROM (MINVALUE) TO ('2000-01-01')",
        "CREATE TABLE keys_new PARTITION OF keys FOR VALUES FROM ('2000-01-01') TO (MAXVALUE)",
        "INSERT INTO keys SELECT '1999-12-30'::date + g, md5(g::text)::uuid, decode(md5(g::text), 'hex'), g * -1.25,"
        " '2024-03-31 00:59:59.123456+00'::timestamptz + g * interval '7 hours', E'\\'a\\\\, \" ' || g, 'c', g,"
        " ARRAY[g, NULL], jsonb_build_object('g', g) FROM generate_series(0, 99) g",
        "UPDATE keys SET v = 'NaN' WHERE v < 3",
    )
    mirror.register("keys")
    mirror.catch_up()
    columns = ("d", "u", "b", "x", "t", "s", "c")
    printed = ", ".join(f"format('%s', {name})" for name in columns)
    keys = database.rows(f"SELECT {printed} FROM keys ORDER BY d LIMIT 10")
    wrong = [(*key, "1.00", None, None) for key in keys[:5]]
    drift(mirror.settings, "keys", removed=keys, added=wrong)
    done = repaired(mirror, "keys")
    assert (done.error, done.missing, done.different, done.extra) == (None, 5, 5, 0)
    assert repaired(mirror, "keys").differing == 0
    assert verify(mirror.settings).equal
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD COLUMN more int DEFAULT 3", "VACUUM FULL t", "TRUNCATE t"])
def test_a_table_that_changes_as_a_whole_meanwhile_is_compared_again(mirror: Mirror, statement: str) -> None:
    statements = [statement]

    def change() -> None:
        if statements:
            mirror.database.execute(statements.pop())
            mirror.await_frontier()
            mirror.await_live("public.t")

    drift(mirror.settings, "t", removed=[("1",)], added=[("900", "extra", None)])
    runner = DigestingRunner(ThreadTaskRunner(), change)
    with mirror.pumping():
        (done,) = repair(mirror.settings, mirrored(mirror, "t"), runner=runner)
        mirror.await_frontier()
    assert statements == []
    assert done.error is None
    assert done.repaired != statement.startswith("TRUNCATE")
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
def test_a_truncate_that_the_mirror_has_not_followed_yet_is_no_difference(mirror: Mirror) -> None:
    """It commits after the snapshot and before the heap is read, and no pump runs: the lake keeps its rows until the
    frontier has passed it."""
    waiting: LiteralString = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%pin_tables(%'"
    )
    with ThreadPoolExecutor(1) as pool, mirror.database.session(autocommit=False) as connection:
        connection.execute("LOCK TABLE modak.read_pins IN SHARE MODE")
        repairing = pool.submit(repair, mirror.settings, mirrored(mirror, "t"), dry_run=True)
        await_true(lambda: mirror.database.rows(waiting) == [(1,)], 60, "it waits to pin the lake")
        connection.execute("TRUNCATE t")
        connection.commit()
        (compared,) = repairing.result(120)
    assert (compared.error, compared.differing, compared.lake_rows) == (None, 0, 0)


@pytest.mark.further
def test_an_empty_lake_table_is_filled(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[(str(key),) for key in range(1, 501)])
    with mirror.pumping():
        done = repaired(mirror, "t")
    assert (done.missing, done.lake_rows, done.repaired) == (500, 0, True)
    mirror.assert_equal("public.t", "public.other")


def test_what_cannot_be_repaired_is_refused_and_left_alone(mirror: Mirror) -> None:
    mirror.database.execute("CREATE TABLE nokey (v text)", "ALTER TABLE nokey REPLICA IDENTITY FULL")
    mirror.register("nokey")
    mirror.catch_up()
    error = repaired(mirror, "nokey").error
    assert error is not None
    assert "it has no key" in str(error)
    assert "mirror-pump resync public.nokey" in error.remedy
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.unverified("the lake alone has the rows of a partition that was dropped")
def test_rows_that_only_the_lake_has_are_neither_compared_nor_removed(
    retention_tables: RetentionTables, database: Database
) -> None:
    """Below the cut-line; and above it, of a partition that somebody dropped."""
    events = retention_tables.automatic(partitions=5, rows=20, fold_age=0.1)
    mirror = events.mirror
    gone = "SELECT count(*) >= 2 FROM modak.partitions WHERE state = 'dropped'"
    with mirror.pumping():
        mirror.await_live("public.events")
        await_true(lambda: database.rows(gone) == [(True,)], 60, "two partitions are gone from the heap")
    newest = database.rows("SELECT at::text, id::text FROM events ORDER BY at DESC, id LIMIT 3")
    added = [(*newest[0], "1", "wrong"), (newest[0][0], "900", "1", "extra")]
    with mirror.pumping(), writing(database, events.write, 7) as written:
        drift(mirror.settings, "events", removed=newest, added=added)
        first = written()
        await_true(lambda: written() > first + 3, 30, "writes")
        done = repaired(mirror, "events")
        assert (done.error, done.repaired) == (None, True)
        assert 1 <= done.differing <= 4
    with duckdb_connection() as duckdb:
        events.assert_exact(duckdb)
    mirror.assert_sound()
    ((partition,),) = database.rows(
        "SELECT partition_id FROM modak.partitions WHERE tier_key_lo <= %s ORDER BY tier_key_lo DESC LIMIT 1",
        (int(newest[0][0]),),
    )
    with database.connect() as connection:
        connection.execute(f"DROP TABLE {partition}".encode())
    mirror.catch_up()
    before = mirror.lake("public.events")
    refused = repaired(mirror, "events").error
    assert refused is not None
    assert f"of partition {partition}, which was dropped" in str(refused)
    assert mirror.lake("public.events") == before


@pytest.mark.further
def test_rows_of_a_partitioned_lake_table(mirror: Mirror) -> None:
    """A row that differs is replaced wherever the lake has it, in its own partition or in another one's."""
    mirror.database.execute(
        "CREATE TABLE divided (id int PRIMARY KEY, v text, n int)",
        "INSERT INTO divided SELECT g, 'v' || g % 5, g FROM generate_series(1, 300) g",
    )
    mirror.register("divided", choices=parse_choices([], [], partition_by="v, bucket(2, n)"))
    mirror.catch_up()
    drift(
        mirror.settings,
        "divided",
        removed=[("1",), ("2",), ("3",)],
        added=[("2", "elsewhere", "2"), ("900", "v1", None), ("10", "v1", "10"), ("11", None, "5")],
    )
    with mirror.pumping():
        done = repaired(mirror, "divided")
        assert (done.error, done.missing, done.extra, done.different, done.repaired) == (None, 2, 1, 3, True)
        mirror.database.execute("UPDATE divided SET v = 'later' WHERE id IN (1, 2, 3, 10, 11)")
        mirror.await_frontier()
    mirror.assert_equal("public.divided", "public.t")
    assert_divided(mirror.location("public.divided"))


_has_row_filters = pytest.mark.skipif(major_version() < 15, reason="row filters exist since PostgreSQL 15")


@pytest.fixture
def filtered(mirror: Mirror) -> Mirror:
    """Of a table with 100 rows and a filter, the lake has the 70 that meet it."""
    mirror.database.execute(
        "CREATE TABLE filtered (id int PRIMARY KEY, region text, v text)",
        "ALTER TABLE filtered REPLICA IDENTITY FULL",
        """INSERT INTO filtered SELECT g, CASE WHEN g <= 30 THEN 'US' WHEN g % 2 = 0 THEN 'EU' ELSE '100% EU' END, 'v'
             FROM generate_series(1, 100) g""",
    )
    mirror.register("filtered", choices=ColumnChoices(where="region LIKE '%EU'"))
    mirror.catch_up()
    return mirror


def assert_rows_of_filter(mirror: Mirror) -> None:
    """By an engine that shares nothing with a repair, with a condition of its own."""
    expected = mirror.database.rows("SELECT id, region, v FROM filtered WHERE right(region, 2) = 'EU'")
    assert sorted(mirror.lake("public.filtered")) == sorted(expected)
    assert verify(mirror.settings).equal
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
@_has_row_filters
def test_with_a_row_filter_only_its_rows_are_repaired(filtered: Mirror) -> None:
    """Rows that the filter leaves out are no difference if the lake lacks them, and one if it has them."""
    mirror = filtered
    drift(
        mirror.settings,
        "filtered",
        removed=[("40",), ("41",), ("42",)],
        added=[("1", "US", "v"), ("2", "EU", "v"), ("42", "EU", "wrong"), ("900", "EU", "v")],
    )
    done = repaired(mirror, "filtered")
    assert (done.error, done.missing, done.extra, done.different, done.repaired) == (None, 2, 3, 1, True)
    assert (done.heap_rows, done.lake_rows) == (70, 71)
    assert repaired(mirror, "filtered").differing == 0
    assert_rows_of_filter(mirror)


@pytest.mark.further
@_has_row_filters
def test_rows_that_enter_and_leave_a_filter_during_a_repair(filtered: Mirror) -> None:
    """Once while heap and lake are compared, and once more between writing and the lock."""
    mirror = filtered
    keys = ("1", "2", "40", "41", "42", "43")
    drift(mirror.settings, "filtered", removed=[(key,) for key in keys], added=[(key, "EU", "wrong") for key in keys])
    changed: list[bool] = []

    def change() -> None:
        if not changed:
            changed.append(True)
            mirror.database.execute(
                "UPDATE filtered SET region = 'EU' WHERE id IN (2, 3)",
                "UPDATE filtered SET region = 'US' WHERE id IN (40, 41, 50)",
                "UPDATE filtered SET v = 'newer' WHERE id IN (1, 42)",
            )
            mirror.await_frontier()

    def observe(progress: TableProgress) -> None:
        if progress.step == RepairPhase.REPAIRING:
            mirror.database.execute(
                "UPDATE filtered SET region = 'EU' WHERE id IN (1, 40)",
                "UPDATE filtered SET region = 'US' WHERE id IN (2, 43)",
            )
            mirror.await_frontier()

    runner = DigestingRunner(ThreadTaskRunner(), change)
    with mirror.pumping():
        (done,) = repair(mirror.settings, mirrored(mirror, "filtered"), runner=runner, observe=observe)
        assert (done.error, done.repaired) == (None, True)
        mirror.await_frontier()
        assert repaired(mirror, "filtered").differing == 0
    assert changed
    assert_rows_of_filter(mirror)


@pytest.mark.further
def test_masked_values_stay_masked(mirror: Mirror, warehouse: str) -> None:
    mirror.database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text)",
        "INSERT INTO people SELECT g, 'Unmasked-' || g FROM generate_series(1, 50) g",
    )
    mirror.register("people", choices=parse_choices([], [], ["email=sha256"]))
    mirror.catch_up()
    drift(mirror.settings, "people", removed=[("1",), ("2",)])
    done = repaired(mirror, "people")
    assert (done.error, done.missing) == (None, 2)
    assert verify(mirror.settings).equal
    files = [path for path in Path(warehouse.removeprefix("file://")).rglob("*") if path.is_file()]
    assert files
    assert not any(b"Unmasked" in path.read_bytes() for path in files)
    mirror.assert_equal("public.t", "public.other")


@pytest.mark.further
def test_without_a_pump_a_repair_starts_one(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[("1",), ("2",)])
    mirror.database.execute("UPDATE t SET v = 'newer' WHERE id = 2")
    (done, unchanged) = repair_where_different(mirror.settings, [], dry_run=False)
    assert (unchanged.table, unchanged.missing, unchanged.repaired) == ("public.t", 1, True)
    assert (done.table, done.differing, done.repaired) == ("public.other", 0, False)
    mirror.assert_equal("public.t", "public.other")


def test_after_a_lost_slot_it_is_refused(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[("1",)])
    drop_slot(mirror)
    for names in (["t"], []):
        with pytest.raises(SourceError) as refused:
            repair_where_different(mirror.settings, names, dry_run=False)
        assert "mirror-pump resync --all" in refused.value.remedy
    resynced(mirror)
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.other")


def test_verify_repairs_what_differs_and_compares_again(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[("1",)], added=[("700", "extra", None)])
    with mirror.pumping():
        assert not verify(mirror.settings).equal
        report = verify_and_repair(mirror.settings, [])
        assert report.equal
        assert {table.table: table.repaired for table in report.tables} == {"public.t": 2, "public.other": 0}
        assert verify(mirror.settings).equal
    mirror.assert_equal("public.t", "public.other")


def test_the_commands(mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mirror.settings.environment(["slot", "publication"]).items():
        monkeypatch.setenv(name, value)

    def printed_by(*arguments: str) -> str:
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    drift(mirror.settings, "t", removed=[("1",)], added=[("700", "extra", None)])
    with mirror.pumping():
        (found,) = orjson.loads(printed_by("resync", "t", "--where-different", "--dry-run", "--json"))["tables"]
        assert (found["missing"], found["extra"], found["repaired"]) == (1, 1, False)
        printed = printed_by("resync", "t", "--where-different")
        assert printed == "public.t: 1 missing, 1 extra, 0 different, repaired (heap 500 rows, lake 500 rows before)\n"
        assert printed_by("resync", "t", "--where-different") == "public.t: equal (heap 500 rows, lake 500 rows)\n"
        drift(mirror.settings, "t", removed=[("2",)])
        repaired_lines = printed_by("verify", "--repair", "t").splitlines()
        assert repaired_lines[0] == "public.t: equal (heap 500 rows, lake 500 rows; 1 rows were repaired)"
        refused = run("resync", "t", "--where-different", "--no-wait")
        assert refused.exit_code != 0
        assert "leave out --no-wait" in refused.output
    mirror.assert_equal("public.t", "public.other")


def test_a_repair_that_ends_before_its_publish_leaves_nothing(mirror: Mirror, warehouse: str) -> None:
    drift(mirror.settings, "t", removed=[("1",)])
    root = Path(warehouse.removeprefix("file://"))
    before = {path for path in root.rglob("*") if path.is_file()}

    def interrupt(progress: TableProgress) -> None:
        if progress.step == RepairPhase.REPAIRING:
            assert {path for path in root.rglob("*") if path.is_file()} > before, "the rows are written"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(mirror.settings, mirrored(mirror, "t"), observe=interrupt)
    after = {path for path in root.rglob("*") if path.is_file() and path.suffix == ".parquet"}
    assert after == {path for path in before if path.suffix == ".parquet"}
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'repair'"
    await_true(lambda: mirror.database.rows(slots) == [(0,)], 30, "the server ends the session, and its slot with it")
    assert repaired(mirror, "t").missing == 1
    mirror.assert_equal("public.t", "public.other")
