"""`mirror-pump doctor` before anything is set up, on a sound mirror, and on mirrors with problems."""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mirror_pump.errors import SourceError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, ok
from mirror_pump.ops.doctor.examination import CHECKS, examine
from mirror_pump.ops.doctor.machine import space_finding
from mirror_pump.ops.doctor.server import difference_finding
from mirror_pump.ops.doctor.storage import PROBE_DIRECTORY
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.json_schema import mismatches
from tests.support.s3_server import s3_server

GIB = 2**30


def doctor(run: RunCommand, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the checks by name."""
    result = run("doctor", "--json", *arguments)
    document = json.loads(result.stdout)
    assert (result.exit_code == 1) == (document["outcome"] == "failed")
    return result.exit_code, {check["check"]: check for check in document["checks"]}


def told(check: dict[str, Any], outcome: str) -> str:
    """The messages of the findings with this outcome."""
    return "; ".join(finding["message"] for finding in check["findings"] if finding["outcome"] == outcome)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror with one live table. The program uses its settings too, except for the warehouse."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders VALUES (1, 'a')",
    )
    made = Mirror.create(database, warehouse, tasks)
    made.register("orders")
    made.catch_up()
    return made


def test_before_anything_is_there(run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No database, no Java, no warehouse: each is reported with what to do, and the other checks run."""
    monkeypatch.delenv("MIRROR_PUMP_DSN")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Without a Java, the jars are below the home directory of the user's entry, where this machine may have some.
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"spark.jars.ivy {tmp_path}/ivy\n")
    monkeypatch.setattr("mirror_pump.engine.spark_runtime.java._bundled_home", lambda: None)
    code, checks = doctor(run)
    assert code == 1
    assert list(checks) == [check.name for check in CHECKS]
    assert "no database was given" in told(checks["database"], "failed")
    assert checks["database"]["findings"][0]["remedy"].startswith("export MIRROR_PUMP_DSN=")
    assert "none was found" in told(checks["java"], "failed")
    assert "pip install" in checks["java"]["findings"][0]["remedy"]
    assert "Maven" in told(checks["jars"], "warning")
    assert "no warehouse is known" in told(checks["storage"], "skipped")
    for name in ("server", "rights", "replication", "event triggers", "clock", "catalog", "publication", "tables"):
        assert checks[name]["outcome"] == "skipped", name
    assert checks["disk"]["findings"]
    for arguments in ((), ("--dsn", "postgresql://me:hunter2@127.0.0.1:1/db")):
        result = run("doctor", *arguments)
        assert result.exit_code == 1
        assert "Traceback" not in result.output
        assert "hunter2" not in result.output
        assert "what to do: " in result.stdout
        assert re.search(r"^\d+ checks: 2 failed, \d+ warning, \d+ skipped, \d+ ok$", result.stdout, re.MULTILINE)


def test_wrong_usage_is_exit_code_2(run: RunCommand) -> None:
    assert run("doctor", "--slot", "Not A Slot").exit_code == 2


@pytest.mark.empty_database
def test_a_server_before_init(run: RunCommand, database: Database, tmp_path: Path) -> None:
    """Doctor can tell whether a server is suitable before init. The missing mirror is no failure, and nothing is left
    behind."""
    (tmp_path / "lake").mkdir()
    code, checks = doctor(run, "--warehouse", str(tmp_path / "lake"))
    assert code == 0, checks
    assert checks["server"]["outcome"] == "ok"
    assert "free" in told(checks["replication"], "ok")
    assert "max_slot_wal_keep_size is unlimited" in told(checks["replication"], "warning")
    assert "no mirror in this database yet" in told(checks["catalog"], "skipped")
    assert checks["catalog"]["findings"][0]["remedy"].startswith("mirror-pump init")
    assert checks["tables"]["outcome"] == checks["publication"]["outcome"] == "skipped"
    assert checks["storage"]["outcome"] == "ok"
    assert list((tmp_path / "lake").iterdir()) == []
    assert database.rows("SELECT FROM pg_namespace WHERE nspname = 'modak'") == []


def test_a_sound_mirror(run: RunCommand, mirror: Mirror) -> None:
    code, checks = doctor(run)
    assert code == 0, checks
    for name in ("database", "server", "event triggers", "clock", "catalog", "publication", "tables", "storage"):
        assert checks[name]["outcome"] == "ok", checks[name]
    assert mirror.settings.require_warehouse() in told(checks["catalog"], "ok")
    assert "has all of 1 tables" in told(checks["publication"], "ok")
    assert told(checks["engines"], "ok").count("1 tables") == 2, "by TCP as JDBC, and by pyiceberg"
    assert "DuckDB" in told(checks["engines"], "ok")
    assert not (Path(mirror.settings.require_warehouse().removeprefix("file://")) / PROBE_DIRECTORY).exists()


@pytest.mark.further
def test_an_installation_without_sqlalchemy_is_sound(
    run: RunCommand, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's way installs none: only programs that read by pyiceberg's SqlCatalog need it."""
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.sql", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    code, checks = doctor(run)
    assert code == 0, checks["engines"]
    assert checks["engines"]["outcome"] == "skipped"
    (finding,) = [found for found in checks["engines"]["findings"] if found["outcome"] == "skipped"]
    assert "SQLAlchemy is not installed" in finding["message"]
    assert finding["remedy"].startswith("pip install ")
    assert "Spark and Trino" in told(checks["engines"], "ok")


def test_jars_are_looked_for_where_spark_has_them(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Java takes the home directory from the user's entry, and not from HOME; Spark's own settings come first."""
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert jars_directory(run) == f"{home}/.ivy2.5.2/jars"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={tmp_path}/of-java")
    assert jars_directory(run) == f"{tmp_path}/of-java/.ivy2.5.2/jars"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Divy.home='{tmp_path}/of ivy'")
    assert jars_directory(run) == f"{tmp_path}/of ivy/jars"
    (tmp_path / "spark-defaults.conf").write_text(f"# by the site\nspark.jars.ivy   {tmp_path}/of-spark\n")
    assert jars_directory(run) == f"{tmp_path}/of-spark/jars"


def jars_directory(run: RunCommand) -> str:
    """The directory of jars that `doctor` names, whether or not they are there."""
    message = doctor(run)[1]["jars"]["findings"][0]["message"]
    found = re.search(r"(?:jars are|not) in (/.*?/jars)(?::|$)", message)
    assert found is not None, message
    return found[1]


@pytest.mark.further
@pytest.mark.parametrize(
    ("harm", "check", "message"),
    [
        ("ALTER TABLE orders REPLICA IDENTITY NOTHING", "tables", "REPLICA IDENTITY NOTHING"),
        ("ALTER PUBLICATION {publication} DROP TABLE orders", "publication", "does not have all of public.orders"),
        ("ALTER PUBLICATION {publication} SET (publish = 'insert')", "publication", "other settings"),
        ("DROP EVENT TRIGGER mirror_pump_ddl", "event triggers", "a schema change is found within seconds instead"),
    ],
)
@pytest.mark.unverified("something is wrong with the table or the publication")
def test_a_remedy_can_be_pasted(run: RunCommand, mirror: Mirror, harm: str, check: str, message: str) -> None:
    with mirror.database.connect() as connection:
        connection.execute(harm.format(publication=mirror.settings.publication).encode())
        code, checks = doctor(run)
        (finding,) = [found for found in checks[check]["findings"] if found["outcome"] != "ok"]
        assert message in finding["message"]
        assert code == (finding["outcome"] == "failed")
        if finding["remedy"].startswith("mirror-pump "):
            assert run(*finding["remedy"].split()[1:]).exit_code == 0
        else:
            # An explanation for people may follow the command.
            connection.execute(re.split(r", with | \(behind", finding["remedy"])[0].encode())
    assert doctor(run)[1][check]["outcome"] == "ok"


@pytest.mark.unverified("its slot is gone")
def test_a_lost_slot(run: RunCommand, mirror: Mirror) -> None:
    idle = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
    await_true(lambda: mirror.database.rows(idle, (mirror.settings.slot,)) == [(True,)], 20, "the slot is free")
    with mirror.database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (mirror.settings.slot,))
    code, checks = doctor(run)
    assert code == 1
    assert "does not exist (any more)" in told(checks["replication"], "failed")
    # One finding does not hide the others.
    assert checks["storage"]["outcome"] == checks["publication"]["outcome"] == "ok"


@pytest.mark.empty_database
def test_storage_that_refuses(database: Database, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    del database
    with s3_server() as server:
        for name, value in {"ENDPOINT": server.endpoint, "REGION": "x", "ACCESS_KEY": "k", "SECRET_KEY": "s"}.items():
            monkeypatch.setenv(f"MIRROR_PUMP_STORAGE_{name}", value)
        code, checks = doctor(run, "--warehouse", "s3://lake/shop")
        assert (code, checks["storage"]["outcome"]) == (0, "ok"), checks["storage"]
        # Arrow leaves an empty object for the directory, as for every directory.
        assert not any(server.objects.values())
        server.forbidden = True
        code, checks = doctor(run, "--warehouse", "s3://lake/shop")
        assert code == 1
        assert "s3://lake/shop" in told(checks["storage"], "failed")
        assert checks["storage"]["findings"][0]["remedy"]


@pytest.mark.empty_database
def test_a_warehouse_that_is_not_there_yet(run: RunCommand, tmp_path: Path) -> None:
    code, checks = doctor(run, "--warehouse", str(tmp_path / "new" / "lake"))
    assert code == 0
    assert "`mirror-pump init` can make it" in told(checks["storage"], "ok")
    assert not (tmp_path / "new").exists()


@pytest.mark.unverified("its files are away")
def test_a_warehouse_that_is_not_there_any_more(run: RunCommand, mirror: Mirror, tmp_path: Path) -> None:
    warehouse = Path(mirror.settings.require_warehouse().removeprefix("file://"))
    warehouse.rename(tmp_path / "elsewhere")
    code, checks = doctor(run)
    assert code == 1
    assert "is not mounted" in told(checks["storage"], "failed")
    assert not warehouse.exists(), "a directory in its place would hide that it is not mounted"


def test_no_check_ends_the_others() -> None:
    """Neither a check that fails nor one that never ends."""
    ended = threading.Event()

    def hangs(_: Site) -> Iterator[Finding]:
        yield ok("begun")
        ended.wait(60)

    def breaks(_: Site) -> Iterator[Finding]:
        yield ok("begun")
        raise ZeroDivisionError("by password=hunter2")

    def refuses(_: Site) -> list[Finding]:
        raise SourceError("it is not right", "mend it")

    seen: list[str] = []
    try:
        found = examine(
            Settings(),
            (
                DoctorCheck("hangs", hangs, deadline=0.2),
                DoctorCheck("breaks", breaks),
                DoctorCheck("refuses", refuses),
                DoctorCheck("depends", lambda _: [ok("made")], needs=("refuses",)),
                DoctorCheck("sound", lambda _: [ok("made")]),
            ),
            report=lambda examined: seen.append(examined.check),
        )
    finally:
        ended.set()
    assert seen == [check.check for check in found.checks] == ["hangs", "breaks", "refuses", "depends", "sound"]
    hung, broken, refused, depending, sound = found.checks
    assert [finding.message for finding in hung.findings] == ["begun", "no answer within 0.2 s"]
    assert broken.findings[1].message.startswith("ZeroDivisionError: by password=")
    assert "hunter2" not in broken.findings[1].message
    assert (refused.findings[0].message, refused.findings[0].remedy) == ("it is not right", "mend it")
    assert depending.outcome is Outcome.SKIPPED
    assert sound.outcome is Outcome.OK
    assert found.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("finding", "outcome"),
    [
        (difference_finding(0.4, 0.01), "ok"),
        (difference_finding(-4000.0, 0.01), "failed"),
        (difference_finding(60.0, 0.01), "warning"),
        # The check may have been running for as long.
        (difference_finding(8.0, 7.0), "ok"),
        (space_finding("x", Path("/x"), GIB // 2, 10 * GIB), "failed"),
        (space_finding("x", Path("/x"), 5 * GIB, 100 * GIB), "warning"),
        (space_finding("x", Path("/x"), 60 * GIB, 10_000 * GIB), "ok"),
        (space_finding("x", Path("/x"), 5 * GIB, 20 * GIB), "ok"),
    ],
)
def test_what_a_figure_means(finding: Finding, outcome: str) -> None:
    assert finding.outcome.value == outcome
    assert bool(finding.remedy) == (outcome != "ok")


def test_keys_are_as_documented(run: RunCommand) -> None:
    printed = json.loads(run("doctor", "--json").stdout)
    assert mismatches(printed, "doctor") == []
    assert printed["checks"][0]["findings"]


def test_the_server_must_be_reachable_for_what_is_in_it(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_PUMP_DSN", "host=127.0.0.1 port=1 dbname=x")
    code, checks = doctor(run)
    assert code == 1
    assert checks["database"]["findings"][0]["remedy"] == "check that the server is running and reachable"
    assert "because of what is said about: database" in told(checks["server"], "skipped")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect("host=127.0.0.1 port=1 dbname=x")
