"""The commands of a mirror with a name, from `init` to reading it: what they print is about that mirror."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import load_settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.readers import role_of

_LIGHT = ("--mirror", "light")


@pytest.fixture
def named(run: RunCommand, slot: str, database: Database, warehouse: str) -> RunCommand:
    """Runs commands in a database with a mirror of no table, and the mirror `light`, which has a live one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    assert run("init", "--warehouse", f"{warehouse}/plain", "--slot", slot, "--publication", slot).exit_code == 0
    names = ("--slot", f"{slot}_light", "--publication", f"{slot}_light")
    done = run("init", *_LIGHT, "--warehouse", f"{warehouse}/light", *names)
    assert done.exit_code == 0, done.stderr
    assert "schema modak_light: created" in done.stdout
    assert "next: mirror-pump register --mirror light TABLE... and mirror-pump run --mirror light" in done.stdout
    settings = complete(load_settings({"dsn": database.dsn, "mirror": "light", "storage_fsync": False}))
    settings = settings.model_copy(update={"limits": QUICK})
    mirror = Mirror(replace(database, mirror="light"), settings, ThreadTaskRunner())
    mirror.register("t")
    mirror.catch_up()
    return run


def test_what_is_printed_is_about_the_mirror(named: RunCommand, database: Database) -> None:
    """A remedy works when it is pasted."""
    status = json.loads(named("status", *_LIGHT, "--json").stdout)
    assert (status["mirror"], len(status["tables"])) == ("light", 1)
    assert json.loads(named("status", "--json").stdout)["tables"] == []
    assert "run: mirror-pump init --mirror none" in named("status", "--mirror", "none").stderr
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    assert "mirror-pump status --mirror light" in named("policy", *_LIGHT, "get", "other").stderr
    database.execute("DELETE FROM modak_light.mirror_secret")
    doctor = named("doctor", *_LIGHT).stdout
    assert "modak_light.mirror_secret is empty" in doctor
    assert "modak.mirror_secret" not in named("doctor").stdout
    (remedy,) = (line for line in doctor.splitlines() if "makes a new one" in line)
    pasted = shlex.split(remedy.partition("`")[2].partition("`")[0])
    assert pasted == ["mirror-pump", "init", *_LIGHT]
    assert named(*pasted[1:]).exit_code == 0
    assert database.rows("SELECT count(*) FROM modak_light.mirror_secret") == [(1,)]
    assert "mirror light has slot" in named("doctor", *_LIGHT).stdout
    assert "no moment is kept: mirror-pump moment keep --mirror light NAME" in named("moment", "list", *_LIGHT).stdout
    assert "mirror-pump register --mirror light TABLE" in named("retain", *_LIGHT).stdout
    assert "\nmirror light of database" in "\n" + named("doctor", *_LIGHT, "--plan", "--measure", "0s").stdout


def test_the_rights_of_a_pump_are_granted_in_its_mirror(
    named: RunCommand, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with role_of(database) as role:
        found = named("doctor", *_LIGHT, "--dsn", role.dsn).stdout
        command = found.partition("for a pump: ")[2].partition("; for a reader")[0]
        monkeypatch.setenv("ADMIN_DSN", database.dsn)
        monkeypatch.setenv("PATH", f"{database.server.binary('psql').parent}:{os.environ['PATH']}")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, found + done.stderr
        assert database.rows(
            "SELECT has_table_privilege(%s, 'modak_light.delta', 'INSERT'), has_schema_privilege(%s, 'modak', 'USAGE')",
            (role.name, role.name),
        ) == [(True, False)]


def test_the_mirror_is_read_by_its_own_names(named: RunCommand, database: Database) -> None:
    read = named("sql", *_LIGHT, "SELECT v FROM t ORDER BY id", "--format", "csv")
    assert read.stdout.splitlines() == ["v", "one", "two"], read.stderr
    assert "Table with name t does not exist" in named("sql", "SELECT v FROM t").stderr
    with role_of(database) as role:
        assert named("reader", *_LIGHT, role.name).exit_code == 0
        assert database.rows(
            "SELECT has_schema_privilege(%s, 'modak_light', 'USAGE'), has_schema_privilege(%s, 'modak', 'USAGE')",
            (role.name, role.name),
        ) == [(True, False)]
        for engine in ("duckdb", "spark", "pyiceberg", "trino"):
            shown = named("connect", *_LIGHT, "--engine", engine, "--user", role.name)
            assert "modak_light" in shown.stdout, shown.stderr
            assert "modak." not in shown.stdout
            assert re.search(r"`mirror-pump \w+\b(?! --mirror light)", shown.stdout) is None
