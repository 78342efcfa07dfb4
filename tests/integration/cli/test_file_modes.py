"""Who may read the files of a warehouse in a directory, whichever part of the program writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ByteSize

from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

MODES = {"private": (0o600, 0o700), "group": (0o640, 0o750), "public": (0o644, 0o755)}


def modes(root: Path) -> dict[str, tuple[int, int]]:
    """Type and permissions of everything in a directory, and of itself, with an example of each."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        found[stat.S_IFMT(mode), stat.S_IMODE(mode)] = path.name
    return {name: mode for mode, name in found.items()}


def assert_modes(root: Path, setting: str) -> None:
    file, directory = MODES[setting]
    wrong = {
        name: f"{mode:o}"
        for name, (kind, mode) in modes(root).items()
        if mode != (directory if kind == stat.S_IFDIR else file)
    }
    assert wrong == {}
    assert len(modes(root)) == 2, "files and directories"


@pytest.mark.parametrize("setting", [None, "group", pytest.param("public", marks=pytest.mark.further)])
def test_files_are_readable_as_the_setting_says(
    database: Database, run: RunCommand, monkeypatch: pytest.MonkeyPatch, slot: str, tmp_path: Path, setting: str | None
) -> None:
    """By default for their user alone: written by init, register, a pump, and by the library's catalogs."""
    if setting is not None:
        monkeypatch.setenv("MIRROR_PUMP_WAREHOUSE_MODE", setting)
    warehouse = tmp_path / "above" / "lake"

    def command(*arguments: str) -> None:
        result = run(*arguments)
        assert result.exit_code == 0, result.output

    command("init", "--warehouse", str(warehouse), "--slot", slot, "--publication", slot)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",
    )
    named: dict[str, Any] = {} if setting is None else {"warehouse_mode": setting}
    settings = complete(Settings(dsn=database.dsn, slot=slot, publication=slot, **named))
    mirror = Mirror(database, settings, ThreadTaskRunner())
    mirror.register("t")
    database.execute("UPDATE t SET v = 'w' WHERE id < 50", "DELETE FROM t WHERE id > 90")
    mirror.catch_up()
    mirror.assert_equal("public.t")
    assert_modes(tmp_path / "above", setting or "private")
    for kind, uri, options in (
        ("path", "path:{}", ()),
        ("log", "path:{}", ("--transactions",)),
        ("sqlite", "sqlite:{}/catalog.db", ()),
    ):
        place = tmp_path / kind
        if kind == "sqlite":
            place.mkdir(MODES[setting or "private"][1])
        command("lake", "init", "a.b", "--catalog", uri.format(place), "--column", "id long", *options)
        assert_modes(place, setting or "private")


@pytest.mark.further
def test_maintenance_by_spark_writes_private_files(
    database: Database, run: RunCommand, slot: str, tmp_path: Path
) -> None:
    """Its procedures write data files, manifests and metadata in Java."""
    warehouse = tmp_path / "lake"
    assert run("init", "--warehouse", str(warehouse), "--slot", slot, "--publication", slot).exit_code == 0
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    settings = complete(Settings(dsn=database.dsn, slot=slot, publication=slot, merge_bytes=ByteSize(0)))
    mirror = Mirror(database, settings, ThreadTaskRunner())
    mirror.register("t")
    for number in range(2, 8):
        database.execute(f"INSERT INTO t VALUES ({number}, 'a')")
        mirror.catch_up()
    assert run("policy", "set", "t", "rewrite_min_input_files", "2").exit_code == 0
    before = set(warehouse.rglob("*"))
    Program(database.dsn, tmp_path, dict(os.environ)).run("maintain", "t")
    written = set(warehouse.rglob("*.parquet")) - before
    assert written
    mirror.assert_equal("public.t")
    assert_modes(warehouse, "private")
