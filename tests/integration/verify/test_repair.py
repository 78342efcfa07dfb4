"""Repairs: a pump replaces the rows of the lake that differ, and both commands say what it replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import orjson
import pytest

from mirror_pump.errors import Interrupted, SourceError, TableError
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.resync.resync import plan_resync
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.requested_repairs import (
    TableRepair,
    repair_where_different,
    verify_and_repair,
    what_differs,
)
from mirror_pump.ops.verify.verification import VerifyReport, verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.drift import drift
from tests.support.events_table import RetentionTables
from tests.support.partitioned_orders import assert_divided
from tests.support.pipeline import writing
from tests.support.repacking import repack
from tests.support.resyncs import drop_slot, repairs, resynced
from tests.support.table_wishes import parse_choices

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(6, 2))",
    "INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 500) g",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
    "INSERT INTO other SELECT g, 'v' FROM generate_series(1, 20) g",
)
BOTH = ("public.t", "public.other")

Result = TypeVar("Result")


def ignored(_: object) -> None:
    """Of messages and progress."""


def repaired(mirror: Mirror, name: str) -> TableRepair:
    (result,) = repairs(mirror, name)
    return result


@contextmanager
def comparing(mirror: Mirror, gate: GatedCopies, repair: Callable[[], Result]) -> Iterator[Future[Result]]:
    """A repair of which the comparison waits until the end of the block; the tables are marked by then."""
    gate.hold()
    with mirror.pumping(), ThreadPoolExecutor(1) as pool:
        try:
            repairing = pool.submit(repair)
            await_true(lambda: gate.waiting or repairing.done(), 60, "the comparison")
            assert not repairing.done(), repairing.result()
            yield repairing
        finally:
            gate.let_go()
        repairing.result(120)
        mirror.await_frontier()


def counts(repair: TableRepair) -> tuple[object, ...]:
    """Its error, and how many rows were missing, extra and different."""
    return repair.error, repair.missing, repair.extra, repair.different


@pytest.fixture
def mirror(database: Database, warehouse: str, gate: GatedCopies) -> Mirror:
    database.execute(*TABLES)
    mirror = Mirror.create(database, warehouse, gate)
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
        (found,) = what_differs(mirror.settings, plan_resync(mirror.settings, ["t"], where_different=True)).tables
        assert (found.error, found.missing, found.extra, found.repaired) == (None, 2, 3, False)
        assert found.different_rows == found.missing + found.extra + found.different
        before = mirror.frontier()
        done = repaired(mirror, "t")
        assert counts(done) == (None, 2, 1, 3)
        assert (done.heap_rows, done.lake_rows, done.repaired, done.copied) == (500, 501, True, False)
        assert done.frontier is not None
        assert before < done.frontier <= mirror.frontier()
        assert (repaired(mirror, "t").repaired, repaired(mirror, "other").repaired) == (False, False)
        mirror.database.execute("UPDATE t SET v = 'later' WHERE id IN (1, 2, 3, 10, 11)", "DELETE FROM t WHERE id = 2")
        mirror.await_frontier()
    mirror.assert_equal(*BOTH)
    mirror.assert_sound()


def test_what_the_stream_brings_during_a_repair_wins(mirror: Mirror, gate: GatedCopies) -> None:
    """An update, a delete, a change of the key, a large value that is not sent again; and readers keep what they had
    until the table is repaired."""
    database = mirror.database
    database.execute(
        "UPDATE t SET v = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g) WHERE id = 4"
    )
    mirror.catch_up()
    wrong = [(str(key), "wrong", "0.00") for key in (1, 2, 3, 4)]
    drift(mirror.settings, "t", removed=[(key,) for key, _, _ in wrong], added=wrong)
    before = mirror.lake("public.t")
    with comparing(mirror, gate, lambda: repaired(mirror, "t")) as first, ThreadPoolExecutor(1) as pool:
        # The second one follows the first.
        second = pool.submit(repaired, mirror, "t")
        database.execute(
            "UPDATE t SET v = 'newer' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 1003 WHERE id = 3",
            "UPDATE t SET n = 17 WHERE id = 4",
            "INSERT INTO t VALUES (1002, 'new', 1)",
            "UPDATE other SET v = 'goes on' WHERE id = 1",
        )
        mirror.await_frontier()
        assert mirror.lake("public.t") == before
        mirror.assert_equal("public.other")
        gate.let_go()
        for done in (first.result(120), second.result(120)):
            # Rows that are written while they are compared count or do not, whichever comes first.
            assert done.error is None
    mirror.assert_equal(*BOTH)
    mirror.assert_sound()


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
                assert (done.error, done.repaired) == (None, True)
            stop.set()
            writer.join()
            mirror.await_frontier()
            assert verify(mirror.settings).equal
    finally:
        stop.set()
        writer.join()
    mirror.assert_equal(*BOTH)
    mirror.assert_sound()


@pytest.mark.further
def test_keys_and_values_of_many_types(mirror: Mirror) -> None:
    """Keys of several columns; values that need a raw text column; a partitioned heap."""
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
    with mirror.pumping():
        assert counts(repaired(mirror, "keys")) == (None, 5, 0, 5)
        assert counts(repaired(mirror, "keys")) == (None, 0, 0, 0)
        assert verify(mirror.settings).equal
    mirror.assert_equal(*BOTH)


@pytest.mark.further
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN more int DEFAULT 3",
        "VACUUM FULL t",
        pytest.param(repack("t"), id="repack"),
        "TRUNCATE t",
    ],
)
def test_a_table_that_changes_as_a_whole_meanwhile(mirror: Mirror, gate: GatedCopies, statement: str) -> None:
    drift(mirror.settings, "t", removed=[("1",)], added=[("900", "extra", None)])
    with comparing(mirror, gate, lambda: repaired(mirror, "t")) as repairing:
        mirror.database.execute(statement)
    assert repairing.result().error is None
    mirror.assert_equal(*BOTH)
    mirror.assert_sound()


@pytest.mark.further
def test_an_empty_lake_table_is_filled(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[(str(key),) for key in range(1, 501)])
    with mirror.pumping():
        done = repaired(mirror, "t")
    assert (done.missing, done.lake_rows, done.repaired) == (500, 0, True)
    mirror.assert_equal(*BOTH)


def test_a_table_that_differs_too_much_is_copied(mirror: Mirror) -> None:
    few = mirror.with_options(limits=mirror.settings.limits.model_copy(update={"compared_rows": 10}))
    drift(mirror.settings, "t", removed=[(str(key),) for key in range(1, 400)])
    with few.pumping():
        done = repaired(mirror, "t")
    assert (done.error, done.repaired, done.copied, done.heap_rows) == (None, True, True, 500)
    mirror.assert_equal(*BOTH)


def reported(report: VerifyReport) -> dict[str, tuple[bool, int, str | None]]:
    """By table, whether it is equal now, how many rows were repaired, and what the problem is."""
    return {table.table: (table.equal, table.repaired, table.problem) for table in report.tables}


def test_both_commands_refuse_the_same_tables(mirror: Mirror) -> None:
    """Without a key, and paused. The others are repaired."""
    mirror.database.execute(
        "CREATE TABLE nokey (v text)",
        "ALTER TABLE nokey REPLICA IDENTITY FULL",
        "INSERT INTO nokey VALUES ('v'), ('w')",
    )
    mirror.register("nokey")
    mirror.catch_up()
    before = mirror.lake("public.nokey")
    with mirror.pumping():
        pause(mirror.settings, "other")
        refused = {table.table: table.error for table in repairs(mirror, "t", "nokey", "other")}
        for table, (reason, remedy) in {
            "public.nokey": ("cannot be repaired row by row: it has no key", "mirror-pump resync public.nokey"),
            "public.other": ("is paused", "mirror-pump resume public.other"),
        }.items():
            error = refused[table]
            assert isinstance(error, TableError)
            assert (reason in str(error), remedy in error.remedy) == (True, True), error
        assert refused["public.t"] is None
        planned = plan_resync(mirror.settings, ["nokey", "other"], where_different=True)
        assert [str(table.error) for table in what_differs(mirror.settings, planned).tables] == [
            str(refused["public.nokey"]),
            str(refused["public.other"]),
        ]
        resume(mirror.settings, "other")
        mirror.await_live("public.other")
        mirror.database.execute("DELETE FROM nokey WHERE v = 'w'")
        mirror.await_frontier()
        assert mirror.lake("public.nokey") != before
    # As a bug would lose it.
    drift(mirror.settings, "nokey", added=[("x",)])
    drift(mirror.settings, "t", removed=[("1",)])
    with mirror.pumping():
        found = reported(verify_and_repair(mirror.settings, ["nokey", "t"]))
        assert found["public.t"] == (True, 1, None)
        equal, count, problem = found["public.nokey"]
        assert (equal, count, str(refused["public.nokey"]) in (problem or "")) == (False, 0, True), problem
        assert "mirror-pump resync public.nokey" in (problem or "")
        resynced(mirror, "nokey", wait=True)
    mirror.assert_equal(*BOTH)


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
    assert "of partitions that were dropped" in str(refused)
    assert mirror.lake("public.events") == before
    with mirror.pumping():
        ((equal, count, problem),) = reported(verify_and_repair(mirror.settings, ["events"])).values()
        assert (equal, count, problem) == (True, 0, None), "what the lake alone has there is no difference"


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
        assert counts(repaired(mirror, "divided")) == (None, 2, 1, 3)
        mirror.database.execute("UPDATE divided SET v = 'later' WHERE id IN (1, 2, 3, 10, 11)")
        mirror.await_frontier()
    mirror.assert_equal("public.divided", "public.t")
    assert_divided(mirror.location("public.divided"))


@pytest.mark.further
def test_with_a_row_filter_only_its_rows_are_repaired(mirror: Mirror, gate: GatedCopies) -> None:
    """Rows that the filter leaves out are no difference if the lake lacks them, and one if it has them. Others enter
    and leave it meanwhile."""
    mirror.database.execute(
        "CREATE TABLE filtered (id int PRIMARY KEY, region text, v text)",
        "ALTER TABLE filtered REPLICA IDENTITY FULL",
        """INSERT INTO filtered SELECT g, CASE WHEN g <= 30 THEN 'US' WHEN g % 2 = 0 THEN 'EU' ELSE '100% EU' END, 'v'
             FROM generate_series(1, 100) g""",
    )
    mirror.register("filtered", choices=ColumnChoices(where="region LIKE '%EU'"))
    mirror.catch_up()
    drift(
        mirror.settings,
        "filtered",
        removed=[("40",), ("41",), ("42",)],
        added=[("1", "US", "v"), ("2", "EU", "v"), ("42", "EU", "wrong"), ("900", "EU", "v")],
    )
    with mirror.pumping():
        done = repaired(mirror, "filtered")
        assert counts(done) == (None, 2, 3, 1)
        assert (done.heap_rows, done.lake_rows) == (70, 71)
    drift(mirror.settings, "filtered", removed=[("50",), ("51",)], added=[("51", "EU", "wrong"), ("3", "EU", "v")])
    with comparing(mirror, gate, lambda: repaired(mirror, "filtered")) as repairing:
        mirror.database.execute(
            "UPDATE filtered SET region = 'EU' WHERE id IN (2, 3)",
            "UPDATE filtered SET region = 'US' WHERE id IN (50, 51, 60)",
            "UPDATE filtered SET v = 'newer' WHERE id = 52",
        )
    assert repairing.result().error is None
    mirror.catch_up()
    assert verify(mirror.settings).equal
    # By an engine that shares nothing with a repair, with a condition of its own.
    expected = mirror.database.rows("SELECT id, region, v FROM filtered WHERE right(region, 2) = 'EU'")
    assert sorted(mirror.lake("public.filtered")) == sorted(expected)
    mirror.assert_equal(*BOTH)


@pytest.mark.further
def test_masked_values_stay_masked(mirror: Mirror, warehouse: str) -> None:
    mirror.database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text)",
        "INSERT INTO people SELECT g, 'Unmasked-' || g FROM generate_series(1, 50) g",
    )
    mirror.register("people", choices=parse_choices([], [], ["email=sha256"]))
    mirror.catch_up()
    drift(mirror.settings, "people", removed=[("1",), ("2",)])
    with mirror.pumping():
        assert counts(repaired(mirror, "people")) == (None, 2, 0, 0)
        assert verify(mirror.settings).equal
    files = [path for path in Path(warehouse.removeprefix("file://")).rglob("*") if path.is_file()]
    assert files
    assert not any(b"Unmasked" in path.read_bytes() for path in files)
    mirror.assert_equal(*BOTH)


def test_after_a_lost_slot_only_all_tables_are_repaired(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[("1",)])
    drop_slot(mirror)
    with pytest.raises(SourceError) as refused:
        repairs(mirror, "t")
    assert "mirror-pump resync --all" in refused.value.remedy
    assert plan_resync(mirror.settings, [], where_different=True).lost is not None
    resynced(mirror, where_different=True)
    with mirror.pumping():
        # What the command would say that made the slot, had it waited.
        found = {table.table: counts(table) for table in repairs(mirror)}
    assert found in (
        {"public.other": (None, 0, 0, 0), "public.t": (None, 1, 0, 0)},
        {"public.other": (None, 0, 0, 0), "public.t": (None, 0, 0, 0)},
    )
    mirror.assert_equal(*BOTH)


def test_verify_repairs_what_differs_and_compares_again(mirror: Mirror) -> None:
    drift(mirror.settings, "t", removed=[("1",)], added=[("700", "extra", None)])
    steps = Steps()
    with mirror.pumping(steps):
        assert not verify(mirror.settings).equal
        report = verify_and_repair(mirror.settings, [])
        assert report.equal
        assert reported(report) == {"public.t": (True, 2, None), "public.other": (True, 0, None)}
        assert steps.details(Step.ROWS_COMPARED, "table") == ["public.t"], "the other one stays live"
        assert verify(mirror.settings).equal
    mirror.assert_equal(*BOTH)


def test_a_table_that_is_unregistered_meanwhile_costs_no_report(mirror: Mirror, gate: GatedCopies) -> None:
    """Before it is marked, and while it is compared."""
    drift(mirror.settings, "t", removed=[("1",)])
    drift(mirror.settings, "other", removed=[("1",)])
    mirror.database.execute("CREATE TABLE third (id int PRIMARY KEY)", "INSERT INTO third VALUES (1)")
    mirror.register("third")
    mirror.catch_up()
    drift(mirror.settings, "third", removed=[("1",)])

    def observe(progress: TableProgress) -> None:
        if (progress.table, progress.step) == ("public.third", "done"):
            mirror.unregister("third")

    with comparing(mirror, gate, lambda: verify_and_repair(mirror.settings, [], observe=observe)) as repairing:
        assert mirror.state("public.third") == ""
        mirror.unregister("other")
    found = reported(repairing.result())
    assert found["public.t"] == (True, 1, None)
    for name in ("public.other", "public.third"):
        equal, count, problem = found[name]
        assert (equal, count, (problem or "").startswith("not repaired: ")) == (False, 0, True), problem
    mirror.assert_equal("public.t")


@pytest.mark.parametrize("command", ["resync", "verify"])
def test_an_interrupted_command_leaves_the_repair_to_the_pump(mirror: Mirror, gate: GatedCopies, command: str) -> None:
    drift(mirror.settings, "t", removed=[("1",)])
    gate.hold()

    def interrupt(progress: Sequence[TableProgress] | TableProgress) -> None:
        tables = [progress] if isinstance(progress, TableProgress) else progress
        if any(table.step == "copying" for table in tables):
            raise KeyboardInterrupt

    commands: dict[str, Callable[[], object]] = {
        "verify": lambda: verify_and_repair(mirror.settings, [], observe=interrupt),
        "resync": lambda: repair_where_different(mirror.settings, ["t"], say=ignored, on_progress=interrupt),
    }
    with mirror.pumping():
        with pytest.raises(Interrupted):
            commands[command]()
        gate.let_go()
        # The same command follows it, or finds it done.
        done = repaired(mirror, "t")
        assert (done.error, done.missing in (0, 1)) == (None, True)
    mirror.assert_equal(*BOTH)


def test_the_commands(mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in mirror.settings.environment(["slot", "publication"]).items():
        monkeypatch.setenv(name, value)

    def printed_by(*arguments: str, code: int = 0) -> str:
        result = run(*arguments)
        assert result.exit_code == code, result.output
        return result.stdout

    drift(mirror.settings, "t", removed=[("1",)], added=[("700", "extra", None)])
    with mirror.pumping():
        (found,) = orjson.loads(printed_by("resync", "t", "--where-different", "--dry-run", "--json"))["tables"]
        assert (found["missing"], found["extra"], found["repaired"], found["action"]) == (1, 1, False, "copy")
        printed = printed_by("resync", "t", "--where-different").splitlines()
        assert (
            printed[-1] == "public.t: 1 missing, 1 extra, 0 different, repaired (heap 500 rows, lake 500 rows before)"
        )
        printed = printed_by("resync", "t", "--where-different").splitlines()
        assert printed[-1] == "public.t: equal (heap 500 rows, lake 500 rows)"
        drift(mirror.settings, "t", removed=[("2",)])
        repaired_lines = printed_by("verify", "--repair", "t").splitlines()
        assert repaired_lines[0] == "public.t: equal (heap 500 rows, lake 500 rows; 1 rows were repaired)"
        drift(mirror.settings, "t", removed=[("3",)])
        assert printed_by("resync", "t", "--where-different", "--no-wait").splitlines()[-1] == "public.t: is compared"
        mirror.await_live("public.t")
        mirror.assert_equal("public.t")
        pause(mirror.settings, "t")
        refused = run("resync", "t", "--where-different")
        assert (refused.exit_code, "mirror-pump resume public.t" in refused.stderr) == (1, True)
        resume(mirror.settings, "t")
        mirror.await_live("public.t")
    mirror.assert_equal(*BOTH)


@pytest.mark.further
def test_without_a_pump_a_command_starts_one(mirror: Mirror, tmp_path: Path) -> None:
    """Whichever command it is. A repair that ends before leaves nothing but what the next one goes on with."""
    program = ThreadedProgram(mirror.database.dsn, tmp_path, mirror.settings.environment(["slot", "publication"]))
    drift(mirror.settings, "t", removed=[("1",), ("2",)])
    mirror.database.execute("UPDATE t SET v = 'newer' WHERE id = 2")
    printed = orjson.loads(program.run("resync", "--all", "--where-different", "--json"))["tables"]
    other, table = printed
    assert (other["table"], other["different_rows"], other["repaired"]) == ("public.other", 0, False)
    assert (table["table"], table["missing"], table["repaired"]) == ("public.t", 2, True)
    drift(mirror.settings, "t", removed=[("3",)])
    assert "; 1 rows were repaired)" in program.run("verify", "--repair")
    mirror.assert_equal(*BOTH)
    mirror.assert_sound()
