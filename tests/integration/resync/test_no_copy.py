"""`register --no-copy`: the lake has the rows that changed since, and whoever reads it is told what it lacks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import TableError
from mirror_pump.lake.document.snapshot_summary import NO_COPY_PROPERTY
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.resync.pausing import follow, pause, resume
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import TableStatus
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import parse_choices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, Steps, assert_same
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.killed_pump import die
from tests.support.resyncs import drop_slot, resynced

NO_COPY = parse_choices([], [], no_copy=True)
ROWS = 100


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 2, big text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 200) FROM generate_series(1, 100) g",
    )
    return Mirror.create(database, warehouse, tasks)


class RandomChanges:
    """Random changes of `t`, and the keys of all rows that were inserted or updated since."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._random = random.Random(seed)
        self._touched: set[int] = set()
        self._next = 1000

    def some(self, count: int = 25) -> None:
        with self._database.connect() as connection:
            for _ in range(count):
                first = self._random.randrange(1, ROWS)
                given = {"first": first, "last": first + self._random.randrange(4), "new": self._next}
                self._next += 10
                statement, touches = self._random.choice(
                    [
                        ("UPDATE t SET n = n + 1 WHERE id BETWEEN %(first)s AND %(last)s RETURNING id", True),
                        ("UPDATE t SET big = n || repeat(md5(big), 150) WHERE id = %(first)s RETURNING id", True),
                        ("UPDATE t SET id = %(new)s WHERE id = %(first)s RETURNING id", True),
                        ("DELETE FROM t WHERE id BETWEEN %(first)s AND %(last)s RETURNING id", False),
                        ("INSERT INTO t VALUES (%(new)s, 1, repeat(md5(random()::text), 100)) RETURNING id", True),
                        ("INSERT INTO t VALUES (%(first)s) ON CONFLICT (id) DO UPDATE SET n = 3 RETURNING id", True),
                        ("DELETE FROM t WHERE id >= 1000 AND id < %(new)s - 100 RETURNING id", False),
                    ]
                )
                ids = {number for (number,) in connection.execute(statement.encode(), given).fetchall()}
                self._touched = self._touched | ids if touches else self._touched - ids

    def emptied(self) -> None:
        self._database.execute("TRUNCATE t")
        self._touched.clear()

    def of(self, heap: Sequence[Row]) -> list[Row]:
        """Those of the heap's rows that the lake has."""
        return [row for row in heap if row[0] in self._touched]


def _status(mirror: Mirror) -> TableStatus:
    with StatusReader(mirror.settings) as reader:
        return next(table for table in reader.read().tables if table.table == "public.t")


def _start(database: Database) -> int:
    (row,) = database.rows("SELECT m.start_lsn FROM modak.mirror_tables m WHERE m.table_id = 'public.t'::regclass")
    return int(row[0])


def _summary(mirror: Mirror) -> dict[str, str]:
    """Of the published snapshot, as pyiceberg reads it."""
    snapshot = StaticTable.from_metadata(mirror.location("public.t")).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.further) for seed in (1, 2))])
def test_the_lake_has_the_rows_that_changed(mirror: Mirror, database: Database, seed: int) -> None:
    """The rows of the lake are those of the heap that were inserted or updated, whatever happens to the others."""
    mirror.register("t", choices=NO_COPY)
    changes = RandomChanges(database, seed)
    steps = Steps()
    with mirror.pumping(steps):
        for _ in range(5):
            changes.some()
            mirror.await_frontier()
            assert_same(changes.of(mirror.heap("t")), mirror.lake("public.t"), f"seed {seed}")
        changes.emptied()
        changes.some(40)
        mirror.await_frontier()
        assert_same(changes.of(mirror.heap("t")), mirror.lake("public.t"), f"seed {seed}, after TRUNCATE")
    assert steps.count(Step.CHUNK_COPIED) == 0
    mirror.assert_sound()


def test_deletes_of_rows_that_the_lake_lacks_leave_no_trace(mirror: Mirror, database: Database) -> None:
    """Once a key index is there, a delete of an absent row writes no file."""
    mirror.register("t", choices=NO_COPY)
    steps = Steps()
    with mirror.pumping(steps):
        for _ in range(200):
            database.execute("UPDATE t SET n = n + 1 WHERE id <= 10")
            mirror.await_frontier()
            if steps.count(Step.INDEX_READY):
                break
        assert steps.count(Step.INDEX_READY)
        before = _summary(mirror)
        for _ in range(3):
            database.execute("DELETE FROM t WHERE id IN (SELECT id FROM t WHERE n = 0 LIMIT 20)")
            mirror.await_frontier()
        after = _summary(mirror)
        for kind in ("position", "equality"):
            assert before[f"total-{kind}-deletes"] == after[f"total-{kind}-deletes"]
        database.execute("DELETE FROM t WHERE id <= 5")
        mirror.await_frontier()
        assert [row[0] for row in mirror.lake("public.t")] == [10, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "copying_again",
    [
        "resync",
        *(pytest.param(event, marks=pytest.mark.further) for event in ("pause and resume", "lost slot", "type")),
    ],
)
def test_whatever_copies_it_again_makes_it_whole(mirror: Mirror, database: Database, copying_again: str) -> None:
    """And until then readers keep what they had, and are told."""
    mirror.register("t", choices=NO_COPY)
    changes = RandomChanges(database, 7)
    changes.some()
    mirror.catch_up()
    before = mirror.lake("public.t")
    assert _status(mirror).no_copy
    match copying_again:
        case "resync":
            resynced(mirror, "t")
        case "pause and resume":
            pause(mirror.settings, "t")
            changes.some()
            resumed = resume(mirror.settings, "t")
            follow(mirror.settings, [resumed.table_id], lambda _: None)
        case "lost slot":
            drop_slot(mirror)
            resynced(mirror)
        case _:
            database.execute("ALTER TABLE t ALTER n TYPE numeric(20,2) USING n / 3.0")
    if copying_again != "pause and resume":
        assert_same(before, mirror.lake("public.t"), "until it is copied")
        assert _status(mirror).no_copy
    database.execute("UPDATE t SET big = 'x' WHERE id % 10 = 0")
    mirror.catch_up()
    mirror.assert_equal("public.t")
    assert not _status(mirror).no_copy
    assert NO_COPY_PROPERTY not in _summary(mirror)
    assert verify(mirror.settings, ["t"]).equal
    mirror.assert_sound()


def test_every_door_says_what_is_missing(mirror: Mirror, database: Database, run: RunCommand) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("t", choices=NO_COPY)
    database.execute("UPDATE t SET n = 1 WHERE id = 1")
    database.execute("CREATE TABLE whole (id int PRIMARY KEY)", "INSERT INTO whole VALUES (1)")
    mirror.register("whole")
    mirror.catch_up()
    missing = "public.t was registered with --no-copy: rows that have not changed since are missing"
    queried = run("sql", "SELECT count(*) FROM t", *slot)
    assert (queried.exit_code, "1" in queried.stdout) == (0, True)
    assert missing in " ".join(queried.stderr.split())
    past = run("sql", "SELECT count(*) FROM t", "--at", format_lsn(Lsn(mirror.frontier())), *slot)
    assert (past.exit_code, missing in " ".join(past.stderr.split())) == (0, True), past.stderr
    shown = run("status", *slot)
    assert "registered with --no-copy: rows that have not changed since are missing" in " ".join(shown.stdout.split())
    whole = run("verify", *slot)
    assert (whole.exit_code, "public.whole" in whole.stdout, "public.t" in whole.stdout) == (0, True, False)
    with pytest.raises(TableError, match="lacks the rows that have not changed since"):
        verify(mirror.settings, ["t"])
    assert _summary(mirror)[NO_COPY_PROPERTY] == format_lsn(Lsn(_start(database)))


def test_a_read_that_promises_the_newest_rows_has_all_of_them(mirror: Mirror, database: Database) -> None:
    mirror.register("t", choices=NO_COPY)
    statement = "SELECT count(*), sum(n) FROM public.t"
    notices: list[str] = []
    with mirror.pumping():
        mirror.await_live("public.t")
        database.execute("UPDATE t SET n = 1 WHERE id <= 10", "DELETE FROM t WHERE id > 90")
        query = Query(statement, ReadMode.HYBRID, max_wait=30)
        with open_query(mirror.settings, query, notices.append) as duckdb:
            assert duckdb.execute(statement).fetchall() == [(90, 10)]
    assert any("public.t was registered with --no-copy" in notice for notice in notices)


def test_the_commands(mirror: Mirror, database: Database, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    registered = run("register", "t", "--no-copy", *slot)
    assert registered.exit_code == 0, registered.stderr
    assert "public.t: rows that do not change from now on are not in the lake" in " ".join(registered.stderr.split())
    assert run("register", "t", "--no-copy", *slot).exit_code == 0, "once more"
    refused = run("register", "t", *slot)
    assert (refused.exit_code, "mirror-pump resync public.t" in refused.stderr) == (1, True)
    exported = run("export", *slot)
    assert "no_copy = true" in exported.stdout
    file = tmp_path / "tables.toml"
    file.write_text(exported.stdout, encoding="utf-8")
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    database.execute("UPDATE t SET n = 2 WHERE id = 2")
    mirror.catch_up()
    assert [row[0] for row in mirror.lake("public.t")] == [2]
    for command in (("resync", "t", "--where-different"), ("verify", "t", "--repair")):
        repaired = run(*command, *slot)
        assert (repaired.exit_code, "--no-copy" in repaired.stderr) == (1, True), repaired.stderr
    (tmp_path / "rows.csv").write_text("id,n,big\n5000,1,x\n", encoding="utf-8")
    with pytest.raises(TableError, match="registered with --no-copy"):
        ingest(mirror.settings, IngestRequest("t", (str(tmp_path / "rows.csv"),)))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("t", "--no-copy", "--heap-retention", "10"), 2, "--no-copy is for tables with a key"),
        (("t", "--no-copy", "--mode", "tiered"), 2, "--no-copy is for tables with a key"),
        (("t", "--no-copy", "--append-only"), 2, "--no-copy is for tables with a key"),
        (("t", "--no-copy", "--snapshot-only"), 2, "--no-copy is for tables with a key"),
        (("public.*", "--no-copy"), 2, "which has to be named"),
        (("t", "u", "--no-copy"), 2, "about one table"),
        (("u", "--no-copy"), 1, "REPLICA IDENTITY FULL"),
    ],
)
def test_what_is_refused(
    mirror: Mirror, database: Database, run: RunCommand, options: tuple[str, ...], code: int, message: str
) -> None:
    database.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    refused = run("register", *options, "--slot", mirror.settings.slot)
    assert (refused.exit_code, message in " ".join(refused.stderr.split())) == (code, True), refused.stderr
    assert mirror.state("public.t") == mirror.state("public.u") == ""


def test_a_large_value_that_neither_stream_nor_lake_has_stops_the_table(mirror: Mirror, database: Database) -> None:
    """Somebody takes REPLICA IDENTITY FULL away: no value is guessed."""
    mirror.register("t", choices=NO_COPY)
    database.execute(
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "UPDATE t SET big = repeat('y', 9000) WHERE id = 50",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
    )
    with database.connect() as connection:
        connection.execute("UPDATE t SET n = 5 WHERE id = 50")
    mirror.catch_up()
    assert [(row[0], row[1]) for row in mirror.lake("public.t")] == [(50, 5)], "the lake has that value"
    database.execute("UPDATE t SET n = 6 WHERE id = 51")
    mirror.catch_up()
    if mirror.state("public.t") == "live":
        mirror_rows = {row[0]: row for row in mirror.lake("public.t")}
        heap_rows = {row[0]: row for row in mirror.heap("t")}
        assert mirror_rows[51] == heap_rows[51]
    else:
        assert "unchanged large values are unknown" in mirror.error("public.t")
        assert "mirror-pump resync public.t" in mirror.error("public.t")


@pytest.mark.further
@pytest.mark.parametrize("step", [Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED])
def test_a_killed_pump(mirror: Mirror, database: Database, step: Step) -> None:
    mirror.register("t", choices=NO_COPY)
    changes = RandomChanges(database, 3)
    for nth in (1, 2):
        changes.some()
        die(mirror, step, nth, meanwhile=lambda: changes.some(5), once="false")
    mirror.catch_up()
    assert_same(changes.of(mirror.heap("t")), mirror.lake("public.t"), "after kills")
    mirror.assert_sound()
