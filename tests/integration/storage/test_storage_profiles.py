"""Tables of one mirror in two warehouses, each with credentials of its own, which are shown nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from psycopg import sql

from mirror_pump.engine.spark_runtime.session import libpq_access
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.s3_faults import FaultyStorage, faulty_storage
from tests.support.s3_storage import BUCKET, REGION, ObjectStore

pytestmark = pytest.mark.unverified("each test verifies by itself: the fixture has no access to the object store")


class TwoStores:
    """The settings' storage and that of the profile `archive`: one server, by two ways, with a key for each."""

    def __init__(self, store: ObjectStore, own: FaultyStorage, archive: FaultyStorage, database: Database) -> None:
        self.own, self.archive = own, archive
        own_credentials, archive_credentials, renewed, *_ = store.secrets.items()
        self.own_key, self.archive_key, self.renewed_key = own_credentials[0], archive_credentials[0], renewed[0]
        self.secrets = (own_credentials[1], archive_credentials[1], renewed[1])
        root = f"s3://{BUCKET}/{database.name}"
        self.warehouse, self.archive_warehouse = f"{root}/shop", f"{root}/archive"
        self.settings = {
            "MIRROR_PUMP_STORAGE_ENDPOINT": own.endpoint,
            "MIRROR_PUMP_STORAGE_REGION": REGION,
            "MIRROR_PUMP_STORAGE_ACCESS_KEY": self.own_key,
            "MIRROR_PUMP_STORAGE_SECRET_KEY": own_credentials[1],
        }
        self.credentials, self.renewed = (
            json.dumps({"access_key": key, "secret_key": secret}) for key, secret in (archive_credentials, renewed)
        )

    def assert_hidden(self, texts: dict[str, str]) -> None:
        """Fails if one of the texts shows a secret, as it is or quoted."""
        shown = {
            name: secret[:4]
            for name, text in texts.items()
            for secret in self.secrets
            if secret in text or quote(secret, safe="") in text
        }
        assert shown == {}


@pytest.fixture
def stores(store: ObjectStore, faulty: FaultyStorage, database: Database) -> Iterator[TwoStores]:
    with faulty_storage(store.port) as archive:
        yield TwoStores(store, faulty, archive, database)


def catalog_of(database: Database) -> str:
    """Everything in schema modak."""
    with database.connect() as connection:
        relations = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'modak'::regnamespace AND relkind IN ('r', 'v')"
        ).fetchall()
        return str(
            [
                connection.execute(sql.SQL("SELECT t::text FROM modak.{} t").format(sql.Identifier(name))).fetchall()
                for (name,) in relations
            ]
        )


def command_lines(process: psutil.Process) -> str:
    """What `ps` shows of a process and all that it has started."""
    lines = []
    for child in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(child.cmdline()))
    return "\n".join(lines)


def create_tables(database: Database) -> None:
    for table in ("orders", "events"):
        database.execute(
            f"CREATE TABLE public.{table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO public.{table} SELECT g, 'v' || g FROM generate_series(1, 300) g",
        )


def test_each_table_is_reached_as_its_profile_says(
    database: Database,
    stores: TwoStores,
    slot: str,
    run: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From `profile add` to `unregister`, with credentials that expire and are renewed in their file: those of a
    profile open its warehouse only, and are shown nowhere."""
    for name, value in stores.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MIRROR_PUMP_LOG_LEVEL", "debug")
    outputs: dict[str, str] = {}

    def command(*arguments: str, code: int = 0) -> str:
        result = run(*arguments)
        outputs[f"{' '.join(arguments)} {len(outputs)}"] = result.output + repr(result.exception)
        assert result.exit_code == code, (arguments, result.output)
        return result.output

    command("init", "--warehouse", stores.warehouse, "--slot", slot)
    create_tables(database)
    add = ("profile", "add", "archive", "--credentials", "archive", "--endpoint", stores.archive.endpoint)
    profile = (*add, "--region", REGION, "--warehouse")
    file = tmp_path / "credentials"
    assert "MODAK_CREDENTIALS_ARCHIVE_FILE" in command(*profile, stores.archive_warehouse, code=1)
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE_FILE", str(file))
    file.write_text(f"access_key={stores.archive_key}\nsecret_key={stores.secrets[0]}\n")
    # The key of another.
    assert "renew the credentials in" in command(*profile, stores.archive_warehouse, code=1)
    assert [entry["profile"] for entry in json.loads(command("profile", "list", "--json"))] == ["default"]
    file.write_text(stores.credentials)
    assert "one within the other" in command(*profile, f"{stores.warehouse}/below", code=2)
    command(*profile, stores.archive_warehouse)
    assert "there already" in command(*profile, stores.archive_warehouse)
    command("profile", "set-default", "archive")
    command("profile", "test")
    own_keys, archive_keys = stores.own.keys, stores.archive.keys
    archive_keys.clear()
    environment = {**stores.settings, "MODAK_CREDENTIALS_ARCHIVE_FILE": str(file), "MIRROR_PUMP_LOG_LEVEL": "debug"}
    program = ThreadedProgram(database.dsn, tmp_path, environment)
    command("register", "orders", "--profile", "default", "--no-wait")
    command("register", "events", "--no-wait")
    assert "registered with --profile archive" in command("register", "events", "--profile", "default", code=1)
    pump = program.start("run", log="pump.log")
    try:
        await_true(lambda: database.rows("SELECT DISTINCT state FROM modak.mirror_tables") == [("live",)], 60, "live")
        database.execute("UPDATE orders SET v = 'new' WHERE id < 9; DELETE FROM events WHERE id > 290")
        command("wait", "--now", "--timeout", "60")
        outputs["command lines"] = command_lines(psutil.Process(pump.pid))
        stores.archive.expired = {stores.archive_key}
        database.execute("UPDATE events SET v = 'late' WHERE id < 9")
        await_true(lambda: f"renew the credentials in {file}" in catalog_of(database), 60, "an error that says where")
        command("status")
        # The pump goes on without a restart.
        file.write_text(stores.renewed)
        command("wait", "--now", "--timeout", "60")
        command("verify")
        joined = command("sql", "SELECT count(*) FROM orders JOIN events USING (id)", "--format", "csv")
        assert "290" in joined
        for engine in ("spark", "duckdb", "pyiceberg", "trino"):
            assert stores.warehouse in command("connect", "--engine", engine)
            shown = command("connect", "--engine", engine, "--profile", "archive")
            assert "events" in shown
            assert engine in ("duckdb", "trino") or stores.archive_warehouse in shown
        listed = {entry["profile"]: entry for entry in json.loads(command("profile", "list", "--json"))}
        assert {name: (entry["tables"], entry["default"]) for name, entry in listed.items()} == {
            "archive": (1, True),
            "default": (1, False),
        }
        assert listed["archive"]["credentials"] == "archive"
        command("status", "--json")
        # Readers find their own credentials; these are the maintainer's, who may not lack any.
        monkeypatch.delenv("MODAK_CREDENTIALS_ARCHIVE_FILE")
        monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE", stores.renewed)
        command("sql", "SELECT count(*) FROM events", "--format", "csv")
        monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE", stores.renewed[1:])
        assert "cannot be understood" in command("sql", "SELECT count(*) FROM events", code=1)
        monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE_FILE", str(file))
    finally:
        program.kill(pump)
    outputs |= {"log": (tmp_path / "pump.log").read_text(), "catalog": catalog_of(database)}
    assert (own_keys, archive_keys) == ({stores.own_key}, {stores.archive_key, stores.renewed_key})
    places = database.rows(
        "SELECT t.table_name, t.storage_profile, m.location FROM modak.mirror_tables m"
        " JOIN modak.tables t USING (table_id) ORDER BY 1"
    )
    assert [(name, chosen, location.rsplit("/", 2)[0]) for name, chosen, location in places] == [
        ("events", "archive", stores.archive_warehouse),
        ("orders", "default", stores.warehouse),
    ]
    command("unregister", "events", "--drop-lake")
    assert "no registration that has ended left files" in command("unregister", "--list")
    assert "stored" in command(*profile, f"{stores.archive_warehouse}-2")
    stores.assert_hidden(outputs)


_SPARK = """
import json, os, sys, urllib.request
from contextlib import suppress
from mirror_pump.engine.spark_runtime import session as runtime
given = runtime._base_conf
shown = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true"}
shown |= {"spark.eventLog.dir": sys.argv[1], "spark.eventLog.compress": "false"}
runtime._base_conf = lambda settings: given(settings) | shown
import psutil
from pyspark import SparkContext
from mirror_pump.settings.config import load_settings
from mirror_pump.ops.maintenance.maintainer import maintain_tables
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.ops.verify.verification import verify

settings = complete(load_settings())
for outcome in maintain_tables(settings, [], wait=True):
    print(outcome.table, outcome.lines, outcome.errors)
pages = {}

def look(progress):
    context = SparkContext._active_spark_context
    if progress.phase != "done" or context is None:
        return
    api = f"/api/v1/applications/{context.applicationId}"
    paths = ["/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/"]
    paths += [api + path for path in ("/environment", "/jobs", "/stages", "/allexecutors", "/sql?details=true")]
    for path in paths:
        pages[path] = urllib.request.urlopen(context.uiWebUrl + path).read().decode()
    for execution in json.loads(pages[api + "/sql?details=true"]):
        path = f"/SQL/execution/?id={execution['id']}"
        pages[path] = urllib.request.urlopen(context.uiWebUrl + path).read().decode()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            pages["ps"] = pages.get("ps", "") + " ".join(process.cmdline()) + "\\n"

report = verify(settings, observe=look)
print(json.dumps(report.to_json()))
assert report.equal
assert "spark.app.name" in pages["/environment/"] and "java" in pages["ps"], sorted(pages)
print(json.dumps(pages))
"""


@pytest.mark.soak  # It takes a minute. test_lake_sessions.py and test_secrets.py have the parts that are quick.
def test_credentials_reach_executors_and_are_not_shown_by_spark(
    database: Database, stores: TwoStores, slot: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance and a comparison by Spark, with an executor in a process of its own, which has no credentials in its
    environment. Of all that Spark shows, the web interface and the event log are looked through."""
    for name, value in stores.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MODAK_CREDENTIALS_ARCHIVE", stores.credentials)
    for arguments in (
        ("init", "--warehouse", stores.warehouse, "--slot", slot),
        (
            *("profile", "add", "archive", "--credentials", "archive", "--endpoint", stores.archive.endpoint),
            *("--region", REGION, "--warehouse", stores.archive_warehouse),
        ),
    ):
        result = run(*arguments)
        assert result.exit_code == 0, result.output
    create_tables(database)
    environment = {**stores.settings, "MODAK_CREDENTIALS_ARCHIVE": stores.credentials}
    program = ThreadedProgram(database.dsn, tmp_path, environment)
    pump = program.start("run", log="pump.log")
    try:
        program.run("register", "orders")
        program.run("register", "events", "--profile", "archive")
        for number in range(3):
            database.execute(
                f"UPDATE orders SET v = 'new {number}'; UPDATE events SET v = 'new {number}' WHERE id < 99"
            )
            program.run("wait", "--now", "--timeout", "60")
        stores.own.keys.clear()
        stores.archive.keys.clear()
        log = tmp_path / "events"
        log.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", _SPARK, str(log)],
            env={
                **program.environment,
                "MIRROR_PUMP_MASTER": "local-cluster[1,1,1024]",
                "MIRROR_PUMP_LIMITS__VERIFY_SMALL_BYTES": "1",
                # Nothing of ours is in the executors' environment.
                "SPARK_NO_DAEMONIZE": "1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        program.kill(pump)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert done.stdout.count("1 added data files count") == 2, "both tables were rewritten"
    password = libpq_access(database.dsn).password
    assert password
    texts = {"output": done.stdout + done.stderr, "pump": (tmp_path / "pump.log").read_text()}
    texts |= {str(path): path.read_text(errors="replace") for path in log.rglob("*") if path.is_file()}
    assert any("SparkListenerEnvironmentUpdate" in text for text in texts.values())
    stores.assert_hidden(texts)
    assert [name for name, text in texts.items() if password in text] == []
    assert (stores.own.keys, stores.archive.keys) == ({stores.own_key}, {stores.archive_key})
