"""Mirrors of Iceberg's format version 3: which tables have it, and how tables come to it that had version 2."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.errors import ConnectionLost, TableError
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import next_location, read_metadata
from mirror_pump.lake.document.next_metadata import with_format_version
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.ended_commands import ENDED
from tests.support.killed_pump import die
from tests.support.pending_deletes import await_index
from tests.support.resyncs import resynced

STORAGE = StorageOptions(fsync=False)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT g, 'row ' || g FROM generate_series(1, 1000) g",
        "CREATE TABLE old (id int PRIMARY KEY, v text)",
        "INSERT INTO old SELECT g, 'row ' || g FROM generate_series(1, 1000) g",
    )
    return Mirror.create(database, warehouse, tasks)


def delete_formats(mirror: Mirror, table: str, since: int = 0) -> set[str]:
    """The formats of the files of position deletes that the table's snapshots have, without those of commits up to
    sequence number `since`."""
    return {
        entry.format
        for snapshot in read_metadata(mirror.location(table), STORAGE).snapshots
        for manifest in read_list(snapshot, STORAGE)
        for entry in stored_of(manifest, STORAGE)
        if entry.content == FileContent.POSITION_DELETES and entry.sequence_number > since
    }


def test_a_table_of_either_version_is_mirrored(mirror: Mirror, database: Database) -> None:
    mirror.register("orders", format_version=3)
    mirror.register("old")
    with mirror.pumping() as running:
        mirror.await_live("public.orders", "public.old")
        for table in ("orders", "old"):
            await_index(mirror, running.steps, f"public.{table}", f"UPDATE {table} SET v = 'y' WHERE id = 1")
        for table in ("orders", "old"):
            database.execute(f"DELETE FROM {table} WHERE id % 10 = 0", f"UPDATE {table} SET v = 'x' WHERE id < 50")
        mirror.await_frontier()
        mirror.assert_equal("public.orders", "public.old")
    assert StaticTable.from_metadata(mirror.location("public.orders")).metadata.format_version == 3
    assert StaticTable.from_metadata(mirror.location("public.old")).metadata.format_version == 2
    assert delete_formats(mirror, "public.orders") == {"PUFFIN"}
    assert delete_formats(mirror, "public.old") == {"PARQUET"}


def test_a_table_is_upgraded_while_the_pump_runs(mirror: Mirror, database: Database) -> None:
    mirror.register("old")
    with mirror.pumping() as running:
        mirror.await_live("public.old")
        await_index(mirror, running.steps, "public.old", "UPDATE old SET v = 'y' WHERE id = 1")
        database.execute("DELETE FROM old WHERE id % 10 = 0")
        mirror.await_frontier()
        with pytest.raises(TableError, match="there is no way back but a copy"):
            upgrade(mirror.settings, "old", 3, confirmed=False)
        assert delete_formats(mirror, "public.old") == {"PARQUET"}
        assert upgrade(mirror.settings, "old", 3, confirmed=True)
        since = read_metadata(mirror.location("public.old"), STORAGE).last_sequence_number
        assert not upgrade(mirror.settings, "old", 3, confirmed=False)
        mirror.assert_equal("public.old")
        database.execute("UPDATE old SET v = 'x' WHERE id < 50", "INSERT INTO old VALUES (2000, 'y')")
        mirror.await_frontier()
        mirror.assert_equal("public.old")
        with pytest.raises(TableError, match="has format version 3: there is no way back"):
            upgrade(mirror.settings, "old", 2, confirmed=True)
    assert delete_formats(mirror, "public.old", since) == {"PUFFIN"}


def test_the_commands(mirror: Mirror, database: Database, run: RunCommand, tmp_path: Path) -> None:
    """Which version a table gets, how it is shown and raised, and what is said before and instead."""
    slot = ("--slot", mirror.settings.slot)
    assert run("register", "old", *slot).exit_code == 0
    assert run("register", "orders", "--format-version", "3", *slot).exit_code == 0
    shown = run("policy", "get", "orders", "format-version", *slot)
    assert shown.stdout == "format_version = 3 (set)\n"
    assert run("policy", "get", "old", "format_version", *slot).stdout == "format_version = 2 (default)\n"
    for options, message in (
        (("policy", "set", "old", "format-version", "4"), "is 2 or 3, not '4'"),
        (("policy", "unset", "orders", "format-version"), "a lake table has one format_version"),
        (("policy", "set", "orders", "format-version", "2", "--yes"), "no way back but a copy of its rows"),
        (("policy", "set", "old", "format-version", "3"), "with --yes it is upgraded"),
        (("register", "old", "--format-version", "3"), "to upgrade it: mirror-pump policy set public.old"),
        (("register", "orders", "--format-version", "2"), "mirror-pump register public.orders --format"),
    ):
        refused = run(*options, *slot)
        assert refused.exit_code
        assert message in " ".join(refused.stderr.split())
    file = tmp_path / "tables.toml"
    file.write_text(run("export", *slot).stdout, encoding="utf-8")
    assert "format_version = 3" in file.read_text(encoding="utf-8")
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    text = file.read_text(encoding="utf-8").replace("format_version = 3", "format_version = 2")
    file.write_text(text, encoding="utf-8")
    differs = run("apply", str(file), *slot)
    assert (differs.exit_code, "no way back but a copy" in differs.stderr) == (1, True)
    file.write_text('[[register]]\ntables = ["orders", "old"]\nformat_version = 3\n', encoding="utf-8")
    assert run("apply", str(file), "--dry-run", *slot).stdout == "upgrade the format version of public.old\n"
    assert run("apply", str(file), *slot).exit_code, "not without --yes"
    assert "public.old: format version 3" in run("apply", str(file), "--yes", *slot).stdout
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    assert "format version of new lake tables: 3" in run("init", "--format-version", "3").stdout
    database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    assert run("register", "later", *slot).exit_code == 0
    assert run("policy", "get", "later", "format_version", *slot).stdout == "format_version = 3 (default)\n"
    assert run("verify", *slot).exit_code == 0


@pytest.mark.further
def test_a_command_that_ends_in_the_middle_has_done_nothing(mirror: Mirror, database: Database) -> None:
    """At each of its writes the session is lost."""
    mirror.register("old")
    mirror.catch_up()
    before = mirror.location("public.old")
    database.execute(ENDED)
    for relation in ("modak.iceberg_tables", "modak.mirror_tables"):
        database.execute(
            f"CREATE TRIGGER ends AFTER UPDATE ON {relation} FOR EACH STATEMENT EXECUTE FUNCTION audit.end_session()"
        )
        with pytest.raises(ConnectionLost):
            upgrade(mirror.settings, "old", 3, confirmed=True)
        database.execute(f"DROP TRIGGER ends ON {relation}")
        assert mirror.location("public.old") == before
        database.execute("UPDATE old SET v = v || '+' WHERE id < 40")
        mirror.catch_up()
        mirror.assert_equal("public.old")
        before = mirror.location("public.old")
        assert read_metadata(before, STORAGE).format_version == 2
    assert upgrade(mirror.settings, "old", 3, confirmed=True)
    database.execute("UPDATE old SET v = v || '+' WHERE id < 40")
    mirror.catch_up()
    assert read_metadata(mirror.location("public.old"), STORAGE).format_version == 3
    mirror.assert_equal("public.old")
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("step", [Step.STAGED, Step.WRITTEN, Step.PUBLISHED])
def test_a_killed_pump(mirror: Mirror, database: Database, step: Step) -> None:
    """Pumps are killed in the middle of commits, and tables are upgraded in between and meanwhile."""
    database.execute("CREATE TABLE later (id int PRIMARY KEY, v text)", "INSERT INTO later SELECT id, v FROM old")
    mirror.register("orders", format_version=3)
    mirror.register("old", "later")
    mirror.catch_up()
    draw = random.Random(3)

    def changed() -> None:
        for table in ("orders", "old", "later"):
            first = draw.randrange(1000)
            database.execute(
                f"UPDATE {table} SET v = v || '+' WHERE id BETWEEN {first} AND {first + 20}",
                f"DELETE FROM {table} WHERE id = {first + 30}",
                f"INSERT INTO {table} VALUES ({10_000 + draw.randrange(10**9)}, 'new') ON CONFLICT DO NOTHING",
            )

    for number in range(3):
        if number == 1:
            upgrade(mirror.settings, "old", 3, confirmed=True)
        die(mirror, step, 2 + number, meanwhile=changed, once="false")
    with mirror.pumping():
        changed()
        upgrade(mirror.settings, "later", 3, confirmed=True)
        changed()
        mirror.await_frontier()
        mirror.assert_equal("public.orders", "public.old", "public.later")
    mirror.assert_sound()


@pytest.mark.further
def test_a_table_that_is_copied_again_is_upgraded_later(mirror: Mirror, database: Database) -> None:
    """The copy builds on metadata of its own, which another engine's upgrade of what readers see overtakes."""
    mirror.register("old")
    mirror.catch_up()
    resynced(mirror, "old")
    with pytest.raises(TableError, match="is being copied again") as refused:
        upgrade(mirror.settings, "old", 3, confirmed=True)
    assert "mirror-pump policy set public.old format_version 3" in refused.value.remedy
    foreign = LakeTable.load(mirror.location("public.old"), STORAGE)
    document = with_format_version(foreign.metadata, 3, foreign.metadata_location, foreign.metadata.last_updated_ms)
    location = next_location(document, foreign.metadata_location)
    write_all([(location, document.to_json())], STORAGE)
    with database.session() as connection:
        assert swap_pointer(connection, "public", "old", foreign.metadata_location, location)
    database.execute("UPDATE old SET v = 'x' WHERE id < 50", "DELETE FROM old WHERE id > 900")
    mirror.catch_up()
    mirror.assert_equal("public.old")
    assert read_metadata(mirror.location("public.old"), STORAGE).format_version == 3
    database.execute("UPDATE old SET v = 'y' WHERE id < 50", "DELETE FROM old WHERE id > 800")
    mirror.catch_up()
    mirror.assert_equal("public.old")
    assert not upgrade(mirror.settings, "old", 3, confirmed=True)
    mirror.assert_sound()
