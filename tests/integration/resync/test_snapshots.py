"""`register --snapshot-only`: a table is copied, rests, and is copied again on request or when it is due."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from mirror_pump.model import SnapshotPlan
from mirror_pump.ops.resync.pausing import follow, resume
from mirror_pump.ops.resync.snapshots import SnapshotKeeper, rest
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import TableStatus
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.table_wishes import parse_choices

ON_REQUEST = SnapshotPlan(None)
OFTEN = SnapshotPlan(timedelta(seconds=1))


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g",
    )
    return Mirror.create(database, warehouse, tasks)


def _status(mirror: Mirror, name: str = "public.t") -> TableStatus:
    with StatusReader(mirror.settings) as reader:
        return next(table for table in reader.read().tables if table.table == name)


def _copied_again(mirror: Mirror, name: str = "t") -> None:
    """As `resume` does, without a running pump."""
    resumed = resume(mirror.settings, name)
    assert resumed.was_paused
    assert resumed.snapshot_only
    (progress,) = follow(mirror.settings, [resumed.table_id], lambda _: None)
    assert (progress.step, progress.detail) == ("live", "")
    rest(mirror.settings)


def test_the_commands(mirror: Mirror, database: Database, run: RunCommand) -> None:
    """Without a running pump."""
    slot = ("--slot", mirror.settings.slot)
    registered = run("register", "t", "--snapshot-only", "--snapshot-every", "1 day", *slot)
    assert (registered.exit_code, registered.stdout) == (0, "public.t: copied; its changes are not followed\n")
    before = mirror.heap("t")
    database.execute("UPDATE t SET v = 'unseen'", "DELETE FROM t WHERE id > 50")
    mirror.catch_up()
    assert mirror.lake("public.t") == before
    status = _status(mirror)
    assert (status.snapshot_only, status.snapshot_every, status.error) == (True, timedelta(days=1), None)
    assert (status.note or "").startswith("a snapshot of 20")
    assert "snapshot" in run("status", *slot).stdout

    again = run("register", "t", "--snapshot-only", "--snapshot-every", "1 day", *slot)
    assert (again.exit_code, again.stdout) == (0, "public.t: is registered already: nothing was copied\n")
    other = run("register", "t", "--snapshot-only", *slot)
    assert other.exit_code == 1
    assert "is registered with --snapshot-only --snapshot-every 86400s" in other.stderr
    exported = run("export", *slot).stdout
    assert "snapshot_only = true" in exported
    assert 'snapshot_every = "86400s"' in exported

    resumed = run("resume", "t", *slot)
    assert resumed.exit_code == 0, resumed.stderr
    database.execute("UPDATE t SET v = 'unseen as well'")
    mirror.catch_up()
    assert sorted(mirror.lake("public.t")) == [(number, "unseen") for number in range(1, 51)]
    assert database.rows("SELECT prrelid FROM pg_publication_rel") == [], "the server sends nothing of it"
    assert run("unregister", "t", *slot).exit_code == 0
    mirror.assert_sound()


def test_what_a_file_declares(mirror: Mirror, run: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> None:
    slot = ("--slot", mirror.settings.slot)
    file = tmp_path_factory.mktemp("declared") / "tables.toml"
    file.write_text('[[register]]\ntables = ["public.t"]\nsnapshot_only = true\n', encoding="utf-8")
    applied = run("apply", str(file), *slot)
    assert applied.exit_code == 0, applied.stderr
    assert _status(mirror).paused_since is not None
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    file.write_text('[[register]]\ntables = ["public.t"]\n', encoding="utf-8")
    differs = run("apply", str(file), *slot)
    assert differs.exit_code == 1
    assert "is registered with --snapshot-only" in differs.stderr


@pytest.mark.further
def test_it_is_copied_again_when_it_is_due_and_each_copy_is_of_one_moment(mirror: Mirror, database: Database) -> None:
    """Two rows that every transaction changes alike are alike in whatever a reader sees."""
    database.execute("CREATE TABLE other (id int PRIMARY KEY, v text)")
    mirror.register("t", snapshots=OFTEN)
    mirror.register("other")
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            number = 0
            while not stop.wait(0.01):
                number += 1
                connection.execute("UPDATE t SET v = %s WHERE id IN (1, 100)", (str(number),))

    writer = threading.Thread(target=write)
    writer.start()
    versions: list[int] = []
    try:
        with mirror.pumping(), SnapshotKeeper(mirror.settings), duckdb_connection() as duckdb:

            def look() -> bool:
                status = _status(mirror)
                if status.paused_since is not None and status.metadata_location is not None:
                    query = f"SELECT v FROM iceberg_scan('{status.metadata_location}') WHERE id IN (1, 100)"
                    (one,), (other,) = duckdb.execute(query).fetchall()
                    assert one == other
                    if one not in map(str, versions):
                        versions.append(int(one))
                return len(versions) >= 3

            await_true(look, 90, "three copies")
            assert versions == sorted(versions)
            target = database.lsn()
            assert mirror.await_frontier() >= target
            assert mirror.state("public.other") == "live"
    finally:
        stop.set()
        writer.join()
    mirror.assert_sound()


def test_a_killed_keeper_leaves_nothing_half_done(mirror: Mirror, database: Database) -> None:
    """Whatever it did last, another one goes on: with a table that is live, and with one that is being copied."""
    mirror.register("t", snapshots=ON_REQUEST)
    mirror.catch_up()
    assert mirror.state("public.t") == "live"
    rest(mirror.settings)
    since = _status(mirror).paused_since
    rest(mirror.settings)
    assert (_status(mirror).paused_since, mirror.state("public.t")) == (since, "waiting")
    resume(mirror.settings, "t")
    rest(mirror.settings)
    assert _status(mirror).paused_since is None, "it is not complete"
    database.execute("UPDATE t SET v = 'new'")
    with mirror.pumping(), SnapshotKeeper(mirror.settings):
        await_true(lambda: _status(mirror).paused_since is not None, 60, "it rests")
    mirror.assert_equal("public.t")


def test_tables_without_a_key_and_with_masks(mirror: Mirror, database: Database) -> None:
    database.execute(
        "CREATE TABLE log (id int, v text)",
        "INSERT INTO log SELECT g % 10, 'v' FROM generate_series(1, 50) g",
        "CREATE TABLE m (id int PRIMARY KEY, v text)",
        "INSERT INTO m VALUES (1, 'secret')",
    )
    mirror.register("log", choices=parse_choices([], [], append_only=True), snapshots=ON_REQUEST)
    mirror.register("m", choices=parse_choices([], [], ["v=constant(hidden)"]), snapshots=ON_REQUEST)
    mirror.catch_up()
    rest(mirror.settings)
    database.execute("INSERT INTO log VALUES (1, 'v')", "DELETE FROM log WHERE id = 3", "INSERT INTO m VALUES (2, 'x')")
    for name in ("log", "m"):
        _copied_again(mirror, name)
    assert mirror.lake("public.log") == mirror.heap("log")
    assert mirror.lake("public.m") == [(1, "hidden"), (2, "hidden")]


def test_a_table_that_cannot_be_copied_again_is_told(mirror: Mirror, database: Database) -> None:
    database.execute("CREATE TABLE f (id int PRIMARY KEY, v int)", "INSERT INTO f VALUES (1, 1)")
    mirror.register("f", choices=parse_choices([], [], where="id > 0"), snapshots=OFTEN)
    mirror.catch_up()
    rest(mirror.settings)
    before = mirror.lake("public.f")
    database.execute("ALTER TABLE f RENAME COLUMN id TO number")
    with mirror.pumping(), SnapshotKeeper(mirror.settings):
        await_true(lambda: "not copied again" in (_status(mirror, "public.f").note or ""), 60, "it is told")
        database.execute("ALTER TABLE f RENAME COLUMN number TO id")
    assert mirror.lake("public.f") == before
    _copied_again(mirror, "f")
    assert "not copied again" not in (_status(mirror, "public.f").note or "")


_WRONG_OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("t", "--snapshot-every", "1 day"), "requires --snapshot-only"),
    (("t", "--snapshot-only", "--snapshot-every", "1 second"), "at least a minute"),
    (("t", "--snapshot-only", "--snapshot-every", "soon"), "--snapshot-every"),
    (("t", "--snapshot-only", "--heap-retention", "10"), "stay in the heap"),
    (("t", "--snapshot-only", "--mode", "tiered"), "stay in the heap"),
    (("public.*", "--snapshot-only", "--follow-new"), "--follow-new"),
]


def test_wrong_options(mirror: Mirror, run: RunCommand) -> None:
    for options, message in _WRONG_OPTIONS:
        refused = run("register", *options, "--slot", mirror.settings.slot)
        assert (refused.exit_code, message in refused.stderr) == (2, True), (options, refused.stderr)
