"""What other commands say and do about followers: `doctor`, uninstalling, and mirrors with names."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sql
from mirror_pump.ops.doctor import followers
from mirror_pump.ops.follow.following import follow
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.metastores import MotoGlue, moto_glue, rows_there


@pytest.fixture(scope="module")
def glue_server() -> Iterator[MotoGlue]:
    with moto_glue() as server:
        yield server


@pytest.fixture
def glue(glue_server: MotoGlue) -> MotoGlue:
    """The server, without tables of other tests."""
    glue_server.clear()
    return glue_server


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    mirror.catch_up()
    return mirror


def examined(run: RunCommand) -> list[tuple[str, str, str]]:
    """Outcome, message and remedy of what `doctor` says of followers."""
    checks: list[dict[str, Any]] = json.loads(run("doctor", "--json").stdout)["checks"]
    (check,) = (check for check in checks if check["check"] == "followers")
    return [(each["outcome"], each["message"], each["remedy"]) for each in check["findings"]]


def uninstalled(database: Database, mirror: str = "modak") -> subprocess.CompletedProcess[str]:
    script = re.sub(r"\bmodak\b", mirror, (Path(sql.__file__).parent / "uninstall.sql").read_text())
    psql = [str(database.server.binary("psql")), "--no-psqlrc", "-f", "-", database.dsn]
    return subprocess.run(psql, input=script, capture_output=True, text=True, timeout=60, check=False)


def removal_in(text: str) -> list[str]:
    """Arguments of the one command that a text prints on a line of its own."""
    (command,) = (line for line in text.splitlines() if line.startswith("mirror-pump follow remove"))
    return command.split()[1:]


def test_doctor_looks_at_followers(
    mirror: Mirror, glue: MotoGlue, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [finding[:2] for finding in examined(run)] == [("ok", "no other catalog follows")]
    assert run("follow", "add", "company", *glue.arguments).exit_code == 0
    follow(mirror.settings, "company")
    ((outcome, message, _),) = examined(run)
    assert outcome == "ok"
    assert re.fullmatch(r"company: glue eu-west-1, at frontier \S+, 1 tables, one after the other; it answers", message)

    mirror.database.execute("UPDATE modak.followers SET error = 'it hangs'")
    ((outcome, message, _),) = examined(run)
    assert (outcome, "it hangs" in message) == ("warning", True)
    monkeypatch.delenv("MODAK_CREDENTIALS_GLUE")
    ((outcome, message, remedy),) = examined(run)
    assert (outcome, "there are no credentials glue" in message) == ("warning", True)
    assert "MODAK_CREDENTIALS_GLUE_FILE" in remedy
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    query = "UPDATE modak.followers SET credential_ref = NULL, kind = 'rest', options = %s"
    mirror.database.rows(f"{query} RETURNING 1", (json.dumps({"uri": f"http://127.0.0.1:{port}"}),))
    ((outcome, message, _),) = examined(run)
    assert (outcome, "follower company: connecting" in message) == ("warning", True)
    clock = iter((0.0, 54.0))
    monkeypatch.setattr(followers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    ((outcome, message, _),) = examined(run)
    assert (outcome, "not asked, since others took too long" in message) == ("warning", True)


def test_nothing_is_uninstalled_while_a_catalog_follows(mirror: Mirror, glue: MotoGlue, run: RunCommand) -> None:
    assert run("follow", "add", "company", *glue.arguments).exit_code == 0
    follow(mirror.settings, "company")
    mirror.unregister("t", drop_lake=True)
    early = uninstalled(mirror.database)
    assert early.returncode == 3
    assert "these catalogs follow still" in early.stderr
    assert run(*removal_in(early.stderr), "--yes").exit_code == 0
    assert glue.pyiceberg().list_namespaces() == []
    done = uninstalled(mirror.database)
    assert done.returncode == 0, done.stderr


@pytest.mark.further
def test_two_mirrors_follow_in_one_catalog(mirror: Mirror, glue: MotoGlue, run: RunCommand, tmp_path: Path) -> None:
    """By followers of one name, each in namespaces of its own."""
    light = Mirror.create(replace(mirror.database, mirror="light"), (tmp_path / "light").as_uri(), ThreadTaskRunner())
    light.register("t")
    light.catch_up()
    named = ("--mirror", "light")
    assert run("follow", "add", "company", *glue.arguments).exit_code == 0
    assert run("follow", "add", "company", *glue.arguments, *named, "--namespace", "light").exit_code == 0
    follow(mirror.settings, "company")
    follow(light.settings, "company")
    catalog = glue.pyiceberg()
    mirror.database.execute("INSERT INTO t VALUES (2)")
    light.catch_up()
    follow(light.settings, "company")
    assert sorted(rows_there(catalog, "t", "light")) == [(1,), (2,)]
    assert rows_there(catalog, "t") == [(1,)]
    checked = run("follow", "check", "company", *named, "--json")
    assert [table["follower_table"] for table in json.loads(checked.stdout)] == ["light.t"]
    light.unregister("t", drop_lake=True)
    assert run(*removal_in(uninstalled(mirror.database, "modak_light").stderr), "--yes").exit_code == 0
    assert catalog.list_namespaces() == [("public",)]
    assert run("follow", "remove", "company", "--yes").exit_code == 0
