"""Files of registrations that have ended are listed until somebody has them removed; nothing else is removed."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from mirror_pump.engine.ingest.segment_tasks import apply_segment
from mirror_pump.errors import LakeError
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true, lake_rows
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.local_files import path_of

pytestmark = pytest.mark.further


@pytest.fixture
def mirror(database: Database, warehouse: str, monkeypatch: pytest.MonkeyPatch, tasks: ThreadTaskRunner) -> Mirror:
    """Tables a and b of 20 rows, mirrored."""
    for table in ("a", "b"):
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT g, 'row ' || g FROM generate_series(1, 20) g",
        )
    made = Mirror.create(database, warehouse, tasks)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", made.settings.slot)
    made.register("a", "b")
    made.catch_up()
    return made


def _place(mirror: Mirror, table: str) -> Path:
    """The directory of a registered table's files."""
    rows = mirror.database.rows("SELECT location FROM modak.mirror_tables WHERE lake_table = %s", (table,))
    return path_of(rows[0][0])


def _listed(run: RunCommand) -> list[tuple[str, int, str]]:
    shown = run("unregister", "--list", "--json")
    assert shown.exit_code == 0, shown.output
    return [(entry["table"], entry["files"], entry["ended_by"]) for entry in json.loads(shown.stdout)]


def _files(place: Path) -> int:
    return sum(path.is_file() for path in place.rglob("*"))


def test_files_are_listed_until_they_are_removed(mirror: Mirror, run: RunCommand) -> None:
    database, first = mirror.database, _place(mirror, "a")
    assert _listed(run) == []
    assert "no registration that has ended left files" in run("unregister", "--list").stderr
    mirror.unregister("a")
    assert _listed(run) == [("public.a", _files(first), "unregister")]
    assert len(mirror.lake("public.a")) == 20, "it stays in the catalog"
    mirror.register("a")
    mirror.catch_up()
    second = _place(mirror, "a")
    database.execute("DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY)")
    mirror.register("a")
    mirror.catch_up()
    third = _place(mirror, "a")
    status = json.loads(run("status", "--json").stdout)["former_locations"]
    assert [(entry["table"], entry["ended_by"]) for entry in status] == [
        ("public.a", "unregister"),
        ("public.a", "register"),
    ]
    assert "files of former registrations: public.a" in run("status").stdout
    assert run("status", "--check").stdout.count("former") == 0
    shown = run("unregister", "--list").stdout
    assert str(first) in shown
    assert str(second) in shown
    # The table that has the name now is not touched, by either way to request the removal.
    done = run("unregister", "--former", "public.a", "absent")
    assert done.exit_code == 1
    assert "public.a: the files of 2 former registrations were removed" in done.stdout
    assert "no former registration of absent" in done.stderr
    assert (first.exists(), second.exists(), third.exists()) == (False, False, True)
    assert _listed(run) == []
    mirror.assert_equal("public.a", "public.b")
    # Without a table of that name, --drop-lake suffices. Without that option, the command names the files.
    mirror.unregister("a")
    database.execute("DROP TABLE a")
    refused = run("unregister", "a")
    assert refused.exit_code == 1
    assert "mirror-pump unregister --former a" in refused.output
    assert third.exists()
    assert run("unregister", "--drop-lake", "a").exit_code == 0
    assert not third.exists()
    assert database.rows("SELECT table_name FROM modak.iceberg_tables") == [("b",)]
    assert run("unregister", "--drop-lake", "a").exit_code != 0, "there is nothing more of that name"


def test_a_removal_that_was_cut_off_goes_on(mirror: Mirror, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog lists the files before the first is deleted, and until the last one is."""
    place = _place(mirror, "a")

    def cut_off(location: str, storage: object) -> None:
        shutil.rmtree(place / "data")
        raise LakeError("planted: the storage went away")

    with monkeypatch.context() as patched:
        patched.setattr("mirror_pump.ops.register.former_files.delete_tree", cut_off)
        assert run("unregister", "--drop-lake", "a").exit_code == 1
    assert mirror.state("public.a") == ""
    assert place.exists()
    assert [table for table, _, _ in _listed(run)] == ["public.a"]
    assert run("unregister", "--drop-lake", "a").exit_code == 0
    assert not place.exists()
    assert _listed(run) == []
    mirror.assert_equal("public.b")


def test_what_a_pump_was_about_to_write_goes_too(mirror: Mirror) -> None:
    gate = GatedCopies(mirror.runner, apply_segment)
    place = _place(mirror, "a")
    with Mirror(mirror.database, mirror.settings, gate).pumping() as pump:
        mirror.await_frontier()
        gate.hold()
        mirror.database.execute("INSERT INTO a VALUES (100, 'late')", "INSERT INTO b VALUES (100, 'late')")
        await_true(lambda: gate.waiting, 30, "a task is about to write files of a")
        ending = threading.Thread(target=mirror.unregister, args=("a",), kwargs={"drop_lake": True})
        ending.start()
        await_true(lambda: not mirror.state("public.a"), 30, "a is not registered any more")
        # Long enough for its files to be gone if they were not kept for the pump.
        ending.join(0.5)
        gate.let_go()
        ending.join(60)
        assert not ending.is_alive()
        mirror.await_frontier()
        pump.stop()
    assert not place.exists()
    mirror.assert_equal("public.b")


def test_files_in_use_are_not_removed(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    database, place = mirror.database, _place(mirror, "a")
    mirror.unregister("a")
    pointer = mirror.location("public.a")

    def refused(what: str) -> None:
        result = run("unregister", "--former", "a")
        assert result.exit_code == 1, result.output
        assert what in result.stderr
        assert len(lake_rows(pointer)) == 20
        assert [table for table, _, _ in _listed(run)] == ["public.a"]

    # Another engine renamed the lake table, and it is read under its new name.
    database.execute("UPDATE modak.iceberg_tables SET table_name = 'kept' WHERE table_name = 'a'")
    refused("lake table public.kept")
    database.execute("UPDATE modak.iceberg_tables SET table_name = 'a' WHERE table_name = 'kept'")
    # A registration whose files are at, above, or below the location.
    own = database.rows("SELECT location FROM modak.mirror_tables")[0][0]
    former = place.as_uri()
    for shared in (former, f"{former}/data", place.parent.as_uri() + "/"):
        database.execute(f"UPDATE modak.mirror_tables SET location = '{shared}'")
        refused("registered table public.b")
    database.execute(f"UPDATE modak.mirror_tables SET location = '{own}'")
    # A row that no registration would have made.
    database.execute(f"UPDATE modak.former_locations SET location = '{place.parent.as_uri()}'")
    refused("was not made by a registration of")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    database.execute(f"UPDATE modak.former_locations SET location = '{elsewhere.as_uri()}'")
    refused("was not made by a registration of")
    database.execute(f"UPDATE modak.former_locations SET location = '{former}'")
    # The target of a link is not below the location.
    (place / "data" / "link").symlink_to(elsewhere)
    assert run("unregister", "--former", "a").exit_code == 0
    assert not place.exists()
    assert (elsewhere / "precious").read_text() == "kept"
    mirror.assert_equal("public.b")


def test_the_name_of_a_table_means_no_table_of_another_schema(mirror: Mirror, run: RunCommand) -> None:
    database = mirror.database
    database.execute(
        "CREATE SCHEMA old", "CREATE TABLE old.c (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY)"
    )
    mirror.register("old.c")
    mirror.catch_up()
    place = _place(mirror, "c")
    mirror.unregister("old.c")
    for option in ("--drop-lake", "--former"):
        refused = run("unregister", option, "c")
        assert refused.exit_code == 1, refused.output
        assert _files(place)
    assert run("unregister", "--former", "old.c").exit_code == 0
    assert not place.exists()
