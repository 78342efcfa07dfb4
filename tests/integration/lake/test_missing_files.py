"""If files of a table are missing from the lake, that table fails. If the whole lake is missing, the pump waits for
it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.events import LakeFileMissing
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies
from tests.support.cli import RunCommand
from tests.support.events_table import RetentionTables
from tests.support.local_files import path_of
from tests.support.s3_server import S3Server, s3_server

UNWATCHED = InternalLimits(lake_watch_interval=3600, lake_watch_interval_remote=3600)
"""After its first check, the pump only checks files when it commits."""


def lake_of(mirror: Mirror, table: str) -> LakeTable:
    options = StorageOptions(mirror.settings.storage_properties, fsync=False)
    return LakeTable.load(mirror.location(f"public.{table}"), options)


def create(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 20) g",
        )


def change(database: Database, *tables: str) -> None:
    """New keys and old ones: data files, and deletes."""
    for table in tables:
        database.execute(
            f"UPDATE {table} SET v = v || '+' WHERE id = 1", f"INSERT INTO {table} SELECT max(id) + 1 FROM {table}"
        )


def register(mirror: Mirror, *tables: str) -> None:
    mirror.register(*(f"public.{table}" for table in tables))
    mirror.await_live(*(f"public.{table}" for table in tables))
    change(mirror.database, *tables)
    mirror.await_frontier()


@pytest.mark.further
def test_a_table_whose_files_are_gone_fails_and_no_other(
    database: Database, warehouse: str, gate: GatedCopies, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ("whole", "files", "head", "list", "manifest")
    create(database, *broken, "well", "copied", "again", "idle")
    steps = Steps()
    mirror = Mirror.create(database, warehouse, gate, convert_age=3600, merge_bytes=0, limits=UNWATCHED)
    with mirror.pumping(steps):
        register(mirror, *broken, "well", "again", "idle")
        lakes = {table: lake_of(mirror, table) for table in (*broken, "again", "idle")}
        gone = {
            "whole": path_of(lakes["whole"].location),
            "files": path_of(lakes["files"].location) / "data",
            "head": path_of(lakes["head"].metadata_location),
            "list": path_of(lakes["list"].metadata.snapshots[-1].manifest_list),
            "manifest": path_of(lakes["manifest"].manifests[-1].path),
        }
        for path in gone.values():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        change(database, *broken, "well")
        mirror.await_frontier()

        assert {table: mirror.state(f"public.{table}") for table in broken} == dict.fromkeys(broken, "failed")
        for table, path in gone.items():
            error = mirror.error(f"public.{table}")
            assert error.startswith(f"public.{table}: "), error
            assert str(path) in error, error
            assert f"`mirror-pump unregister public.{table}`, then `mirror-pump register public.{table}`" in error
            assert not path.exists(), f"{path} was made anew"
            assert mirror.location(f"public.{table}") == lakes[table].metadata_location
        mirror.assert_equal("public.well")

        # In the middle of a copy, the first one and a later one.
        gate.hold()
        mirror.register("public.copied")
        database.execute("ALTER TABLE again ALTER v TYPE varchar USING upper(v)")
        await_true(lambda: gate.waiting >= 2, 30, "two copies wait")
        for table in ("copied", "again"):
            shutil.rmtree(path_of(lake_of(mirror, table).location))
        gate.let_go()
        await_true(lambda: mirror.state("public.copied") == mirror.state("public.again") == "failed", 30, "both failed")
        change(database, "well")
        mirror.await_frontier()
        assert mirror.state("public.well") == "live"
        shutil.rmtree(path_of(lakes["idle"].location))
        assert_commands_say_it(run, mirror, "idle")
        assert mirror.state("public.idle") == "live", "nothing was committed to it"
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")
    # At the start of a pump, without a change.
    with mirror.pumping(steps):
        await_true(lambda: mirror.state("public.idle") == "failed", 30, "the table without changes failed")
        assert_commands_say_it(run, mirror, "idle")
        assert "whole is gone" not in run("status").stdout
        change(database, "well")
        mirror.await_frontier()
        for table in ("whole", "head", "copied", "again", "idle"):
            unregistered = run("unregister", f"public.{table}")
            assert (unregistered.exit_code, unregistered.stderr) == (0, ""), unregistered.output
        register(mirror, "whole", "head", "copied", "again", "idle")
        mirror.assert_equal(*(f"public.{table}" for table in ("whole", "head", "copied", "again", "idle", "well")))
    assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")


def assert_commands_say_it(run: RunCommand, mirror: Mirror, table: str) -> None:
    """Every command about the table answers with one line that names it. Other tables are not affected."""
    failed = mirror.state(f"public.{table}") == "failed"
    for arguments in (
        ("sql", f"SELECT count(*) FROM {table}"),
        ("sql", "--mode", "lake", f"SELECT count(*) FROM {table}"),
    ):
        read = run(*arguments)
        assert read.exit_code == 1, read.output
        assert f"public.{table}" in read.stderr, read.stderr
        assert "gone" in read.stderr, read.stderr
        assert len(read.stderr.splitlines()) <= 2, read.stderr
    other = run("sql", "SELECT count(*) > 0 FROM well", "--format", "csv")
    assert (other.exit_code, other.stdout.split()[-1]) == (0, "true"), other.output
    assert run("connect", "--engine", "duckdb").exit_code == 0
    if failed:
        status = json.loads(run("status", "--json").stdout)
        (shown,) = [entry for entry in status["tables"] if entry["table"] == f"public.{table}"]
        assert shown["state"] == "failed", shown
        assert "gone" in shown["error"], shown
    maintained = run("maintain", f"public.{table}", "--dry-run")
    assert maintained.exit_code == 1, maintained.output
    assert "gone" in maintained.output, maintained.output
    verified = run("verify", f"public.{table}", "public.well", "--json")
    assert verified.exit_code == 1, verified.output
    first, second = json.loads(verified.stdout)["tables"]
    assert first["problem"], verified.stdout
    assert (first["equal"], second["equal"]) == (False, True), verified.stdout


@pytest.mark.further
def test_a_file_of_a_former_registration_fails_no_table(database: Database, warehouse: str, gate: GatedCopies) -> None:
    """A thread misses it when the table is unregistered with its files, and says so when it is registered again."""
    create(database, "t")
    mirror = Mirror.create(database, warehouse, gate, limits=UNWATCHED)
    with mirror.pumping() as running:
        register(mirror, "t")
        former = lake_of(mirror, "t")
        mirror.unregister("public.t", drop_lake=True)
        register(mirror, "t")
        assert not path_of(former.location).exists()
        table_id = TableId(database.rows("SELECT 't'::regclass::oid::bigint")[0][0])
        for missed in (former.metadata_location, former.manifests[-1].path):
            running.pump.submit(LakeFileMissing(table_id, missed))
        change(database, "t")
        mirror.await_frontier()
        assert (mirror.state("public.t"), mirror.error("public.t")) == ("live", "")
        mirror.assert_equal("public.t")


@pytest.mark.further
def test_a_warehouse_that_is_not_mounted_fails_no_table(database: Database, warehouse: str, gate: GatedCopies) -> None:
    create(database, "one", "two")
    steps = Steps()
    mirror = Mirror.create(database, warehouse, gate, reconnect_backoff_max=0.3, limits=UNWATCHED)
    root = path_of(warehouse)
    elsewhere = root.with_name("elsewhere")
    with mirror.pumping(steps):
        register(mirror, "one", "two")
        before = mirror.frontier()
        root.rename(elsewhere)
        root.mkdir()
        change(database, "one")
        await_true(lambda: steps.count(Step.RETRYING) >= 3, 30, "it tries again")
        assert {mirror.state("public.one"), mirror.state("public.two")} == {"live"}
        assert list(root.iterdir()) == []
        assert mirror.frontier() == before
        assert "it is not mounted" in steps.details(Step.RETRYING, "error")[-1]
        with StatusReader(mirror.settings) as reader:
            (alert,) = reader.read().alerts
        assert alert.table is None
        assert f"none of the 2 tables in {warehouse} can be read" in alert.message
        assert "the pump has been failing since" in alert.message
        root.rmdir()
        elsewhere.rename(root)
        mirror.await_frontier()
        mirror.assert_equal("public.one", "public.two")


@pytest.mark.further
def test_nothing_leaves_the_heap_once_the_lake_lacks_a_file(
    retention_tables: RetentionTables, database: Database, gate: GatedCopies
) -> None:
    events = retention_tables.automatic(lag=None, runner=gate)
    mirror = events.mirror
    mirror.register("public.events", retention=RetentionOptions(lag="100", premake=0, width=None, drop_grace="1 hour"))
    with mirror.pumping():
        events.await_state(p0="tiered", p1="tiered")
    location = str(database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")[0][0])
    cold = LakeTable.load(location, StorageOptions(fsync=False))
    path_of(cold.live_data_files()[0].path).unlink()
    database.execute("UPDATE modak.mirror_tables SET retention = retention || '{\"drop_grace\": 0}'")
    with mirror.pumping():
        await_true(lambda: mirror.state("public.events") == "failed", 30, "events failed")
    assert "only copy" in mirror.error("public.events")
    assert set(events.states().values()) <= {"tiered", "hot"}
    assert database.rows("SELECT count(*) FROM p0") == [(40,)]


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.soak
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_objects_that_are_gone_fail_their_table_and_a_bucket_none(
    database: Database, s3: S3Server, gate: GatedCopies
) -> None:
    create(database, "whole", "head", "one", "two")
    steps = Steps()
    mirror = Mirror.create(
        database,
        "s3://lake/shop",
        gate,
        reconnect_backoff_max=0.3,
        limits=UNWATCHED,
        **s3.storage_settings,
    )

    def remove(prefix: str) -> dict[str, bytes]:
        taken = {name: s3.objects.pop(name) for name in list(s3.objects) if name.startswith(prefix)}
        assert taken
        return taken

    def files_below(prefix: str) -> list[str]:
        return [name for name in list(s3.objects) if name.startswith(prefix) and not name.endswith("/")]

    with mirror.pumping(steps):
        register(mirror, "whole", "head", "one", "two")
        whole = lake_of(mirror, "whole").location.removeprefix("s3://")
        remove(f"{whole}/")
        head = lake_of(mirror, "head").metadata_location
        remove(head.removeprefix("s3://"))
        change(database, "whole", "head", "one")
        mirror.await_frontier()
        assert {mirror.state("public.whole"), mirror.state("public.head")} == {"failed"}
        assert head in mirror.error("public.head")
        # After the publish, the pump removes the files that it left out, except for the empty objects that Arrow's file
        # system leaves for directories when it deletes.
        await_true(lambda: not files_below(whole), 30, "nothing is left of the table")
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")

        def outage(message: str) -> None:
            before, tried = mirror.frontier(), steps.count(Step.RETRYING)
            change(database, "one")
            await_true(lambda: steps.count(Step.RETRYING) >= tried + 2, 30, f"it tries again: {message}")
            assert {mirror.state("public.one"), mirror.state("public.two")} == {"live"}
            assert mirror.frontier() == before
            assert message in steps.details(Step.RETRYING, "error")[-1]

        s3.forbidden = True
        outage("ACCESS_DENIED")
        s3.forbidden = False
        mirror.await_frontier()
        everything = remove("lake/")
        outage("it is not mounted, or it is another warehouse")
        s3.objects.update(everything)
        mirror.await_frontier()
        assert {mirror.state("public.one"), mirror.state("public.two")} == {"live"}
        before = lake_of(mirror, "two").metadata_location
        change(database, "two")
        mirror.await_frontier()
        assert lake_of(mirror, "two").metadata_location != before
