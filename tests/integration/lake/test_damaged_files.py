"""Files of the lake are truncated, or their bytes change: the error names the file, and everything else continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Alert, Severity
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.damage import DAMAGES, Damage, flip
from tests.support.events_table import EventsTable, upsert
from tests.support.local_files import path_of
from tests.support.resyncs import resynced


def lake_of(mirror: Mirror, table: str) -> LakeTable:
    return LakeTable.load(mirror.location(f"public.{table}"), StorageOptions(fsync=False))


def data_files(lake: LakeTable) -> list[str]:
    """URIs of the table's data files with rows, oldest first."""

    def age(file: LiveFile) -> int:
        return file.sequence_number

    return [file.path for file in sorted(lake.live_data_files(), key=age) if file.records]


def create(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text, big text)",
            f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT g, 'v', repeat(md5(g::text), 100) FROM generate_series(1, 40) g",
        )


@pytest.mark.unverified("damaged tables cannot be read")
@pytest.mark.parametrize("damage", [DAMAGES[0], pytest.param(flip, id="flipped", marks=pytest.mark.soak)])
def test_a_damaged_data_file_fails_what_needs_it_and_nothing_else(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, damage: Damage
) -> None:
    tables = ("merged", "converted", "indexed", "looked", "filled", "well")
    create(database, *tables)
    mirror = Mirror.create(database, warehouse, tasks, index_memory=0, convert_age=3600, merge_bytes=0)
    events = EventsTable.manual(mirror, partitions=2)
    with mirror.pumping() as running:
        mirror.register(*tables)
        mirror.await_live("public.events", *(f"public.{table}" for table in tables))
        # A data file with rows on both sides of the cut-line: each new archive branch reads it.
        for table in ("events", "model"):
            database.execute(f"UPDATE {table} SET n = 1 WHERE at BETWEEN 90 AND 110")
        database.execute("DELETE FROM converted WHERE id < 3")
        for number in range(8):
            database.execute(f"INSERT INTO merged VALUES ({100 + number})")
            mirror.await_frontier()
        events.advance(running)
    # The copied file. But only the small files that came after it are merged.
    newest = {"merged", "events"}
    damaged = {
        table: data_files(lake_of(mirror, table))[-1 if table in newest else 0] for table in (*tables[:-1], "events")
    }
    for location in damaged.values():
        damage(path_of(location))

    steps = Steps()

    def await_step(step: Step, table: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Returns once the step is reported for the table, and names its file."""

        def found() -> bool:
            meanwhile()
            return any(
                seen is step and details["table"] == f"public.{table}" and damaged[table] in str(details["error"])
                for seen, details in list(steps.occurrences)
            )

        await_true(found, 30, f"{step} of {table}")

    upkeep = {"convert_age": 0, "convert_rows": 1, "merge_bytes": 1 << 25, "index_memory": 1 << 25, "fold_age": 0.05}
    with mirror.with_options(**upkeep).pumping(steps):
        # A table's file is read for its merge, its conversion, its key index, an unchanged value, a new column.
        database.execute("UPDATE looked SET v = 'new' WHERE id = 7", "UPDATE well SET v = 'new' WHERE id = 7")
        mirror.await_frontier()
        assert mirror.state("public.looked") == "failed"
        error = mirror.error("public.looked")
        assert error.startswith("public.looked: "), error
        assert f"{damaged['looked']} is damaged" in error
        assert "`mirror-pump unregister public.looked`, then `mirror-pump register public.looked`" in error
        await_step(Step.MERGE_FAILED, "merged")
        await_step(Step.CONVERSION_FAILED, "converted")
        # A delete makes an index worthwhile, which is decided once a second. For the next delete it is built.
        await_step(
            Step.INDEX_FAILED,
            "indexed",
            lambda: database.execute("INSERT INTO indexed VALUES (99)", "DELETE FROM indexed WHERE id = 99"),
        )
        with database.connect(autocommit=False) as connection:
            upsert(connection, 5, 1, "corrected")
        await_true(lambda: mirror.state("public.events") == "failed", 30, "the fold fails its table")
        assert f"{damaged['events']} is damaged" in mirror.error("public.events")
        assert "the only copy" in mirror.error("public.events")

        remedies = [
            details["remedy"]
            for step, details in steps.occurrences
            if step in (Step.MERGE_FAILED, Step.CONVERSION_FAILED)
        ]
        assert all("restore this file from a backup, or unregister" in str(remedy) for remedy in remedies)
        before = mirror.frontier()
        database.execute("UPDATE well SET v = 'newer' WHERE id < 20", "UPDATE merged SET v = 'on' WHERE id > 100")
        assert mirror.await_frontier() > before
        mirror.assert_equal("public.well")
        live = ("merged", "converted", "indexed", "well")
        assert {mirror.state(f"public.{table}") for table in live} == {"live"}
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")

        # A fill that fails repeatedly is abandoned for a new copy, which needs no file.
        database.execute("ALTER TABLE filled ADD COLUMN z int DEFAULT 7")
        await_step(Step.FILL_FAILED, "filled")
        await_true(lambda: "public.filled" in steps.details(Step.TABLE_COPIED_AGAIN, "table"), 60, "it is copied again")
        mirror.await_live("public.filled")
        mirror.assert_equal("public.filled")


@pytest.mark.further
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_data_file_is_an_alert_until_it_is_repaired(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, damage: Damage
) -> None:
    """`verify` and `status` name it with what to do, and a resync or the file from a backup ends the alert."""
    create(database, "copied", "restored")
    watch = QUICK.model_copy(update={"lake_watch_interval": 0.1, "lake_watch_interval_remote": 0.1})
    mirror = Mirror.create(database, warehouse, tasks, index_memory=0, convert_age=3600, merge_bytes=0, limits=watch)

    def alerts() -> dict[str | None, Alert]:
        with StatusReader(mirror.settings) as reader:
            return {alert.table: alert for alert in reader.read().alerts if "cannot be read" in alert.message}

    with mirror.pumping():
        mirror.register("copied", "restored")
        mirror.await_live("public.copied", "public.restored")
        database.execute("DELETE FROM copied WHERE id = 3", "DELETE FROM restored WHERE id = 3")
        mirror.await_frontier()
        damaged = {f"public.{table}": data_files(lake_of(mirror, table))[0] for table in ("copied", "restored")}
        kept = path_of(damaged["public.restored"]).read_bytes()
        for location in damaged.values():
            damage(path_of(location))
        problems = {table.table: str(table.problem) for table in verify(mirror.settings).tables}
        for table, location in damaged.items():
            assert f"{location} is damaged" in problems[table]
            assert f"mirror-pump resync {table}" in problems[table]
        assert not alerts()
    with mirror.with_options(convert_age=0, convert_rows=1).pumping():
        await_true(lambda: len(alerts()) == 2, 30, "the conversion's failure is an alert")
        for name, alert in alerts().items():
            assert (alert.severity, damaged[str(name)] in alert.message) == (Severity.CRITICAL, True)
            assert f"mirror-pump resync {name}" in alert.remedy
        path_of(damaged["public.restored"]).write_bytes(kept)
        resynced(mirror, "copied")
        await_true(lambda: not alerts(), 30, "both are repaired")
        mirror.await_live("public.copied", "public.restored")
        mirror.await_frontier()
        mirror.assert_equal("public.copied", "public.restored")
    mirror.assert_sound()


@pytest.mark.unverified("damaged tables cannot be read")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metadata_fails_its_table_and_no_other(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, damage: Damage
) -> None:
    broken = ("head", "list", "manifest")
    create(database, *broken, "well")
    mirror = Mirror.create(database, warehouse, tasks, convert_age=3600, merge_bytes=0)
    with mirror.pumping():
        mirror.register(*broken, "well")
        mirror.await_live(*(f"public.{table}" for table in (*broken, "well")))
    lakes = {table: lake_of(mirror, table) for table in broken}
    damaged = {
        "head": lakes["head"].metadata_location,
        "list": lakes["list"].metadata.snapshots[-1].manifest_list,
        "manifest": lakes["manifest"].manifests[-1].path,
    }
    for location in damaged.values():
        damage(path_of(location))
    steps = Steps()
    with mirror.pumping(steps):
        for table in (*broken, "well"):
            # The unchanged value is in a file that the manifest names.
            database.execute(f"UPDATE {table} SET v = 'new' WHERE id = 7")
        mirror.await_frontier()
        assert {table: mirror.state(f"public.{table}") for table in broken} == dict.fromkeys(broken, "failed")
        for table, location in damaged.items():
            error = mirror.error(f"public.{table}")
            assert error.startswith(f"public.{table}: {location} is damaged"), error
            assert f"`mirror-pump unregister public.{table}`, then `mirror-pump register public.{table}`" in error
        mirror.assert_equal("public.well")
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")
