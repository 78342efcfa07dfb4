"""Passwords and storage keys are nowhere where others could read them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote
from urllib.request import urlopen

import psutil
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from typer.main import get_command

from mirror_pump.cli.main import app
from mirror_pump.engine.spark_runtime.session import jdbc_catalog, storage_conf
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program
from tests.support.cli import RunCommand, ThreadedProgram, on_a_terminal
from tests.support.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "pw-of-the-database/'&x"
KEYS = {
    "MIRROR_PUMP_STORAGE_SECRET_KEY": "secret-of-the-storage/+x",
    "MIRROR_PUMP_STORAGE_SESSION_TOKEN": "token-of-the-storage==",
    "MIRROR_PUMP_STORAGE_ACCESS_KEY": "AKIA-OF-THE-STORAGE",
}
"""The access key's ID is no secret by itself, but nobody else's business either."""


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def dsn(database: Database) -> Iterator[str]:
    """Of a superuser with the password."""
    role = f"secret-{os.urandom(4).hex()}"
    with database.connect() as connection:
        name = sql.Identifier(role)
        connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD)))
        yield make_conninfo(database.dsn, user=role, password=PASSWORD)
        connection.execute(sql.SQL("REASSIGN OWNED BY {0} TO postgres; DROP OWNED BY {0}; DROP ROLE {0}").format(name))


def shown_in(text: str) -> list[str]:
    """The secrets in a text, as they are, quoted or in part."""
    parts = {secret: re.split("[^A-Za-z-]", secret)[0] for secret in (PASSWORD, *KEYS.values())}
    return [secret for secret, part in parts.items() if part in text]


def command_lines(process: subprocess.Popen[bytes]) -> str:
    """What `ps` shows of a process and all that it has started."""
    root = psutil.Process(process.pid)
    lines = []
    for child in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(child.cmdline()))
    return "\n".join(lines)


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_no_secret_is_shown(
    database: Database,
    dsn: str,
    s3: S3Server,
    slot: str,
    run: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by a pump that works, not by commands, not by what fails, and not in the catalog."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MIRROR_PUMP_LOG_LEVEL", "debug")
    outputs: dict[str, str] = {}

    def command(*arguments: str, code: int = 0, database_at: str = dsn) -> None:
        monkeypatch.setenv("MIRROR_PUMP_DSN", database_at)
        result = run(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        outputs[f"{' '.join(arguments)} {len(outputs)}"] = result.output + repr(result.exception)

    init = ("init", "--warehouse", "s3://lake/x", "--slot", slot, "--storage-endpoint", s3.endpoint)
    s3.forbidden = True
    command(*init, code=1)
    s3.forbidden = False
    command(*init)
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO public.t VALUES (1)")
    command("register", "t", "--no-wait")
    (temporary := tmp_path / "temporary").mkdir()
    reported = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    reported |= {"MIRROR_PUMP_LISTEN": "127.0.0.1:0", "TMPDIR": str(temporary)}
    program = ThreadedProgram(dsn, tmp_path, {**KEYS, **reported, "MIRROR_PUMP_LOG_LEVEL": "debug"})
    pump = program.start("run", "--maintain", log="pump.log")
    try:
        await_true(lambda: database.rows("SELECT state FROM modak.mirror_tables") == [("live",)], 90, "live")
        lines = command_lines(pump)
        assert '"maintain", "--serve"' in lines
        for arguments in (["status"], ["status", "--json"], ["sql", "SELECT * FROM t"], ["config", "--example"]):
            command(*arguments)
        for engine in ("spark", "duckdb", "pyiceberg", "trino"):
            command("connect", "--engine", engine)
        s3.forbidden = True
        database.execute("INSERT INTO public.t VALUES (2)")
        await_true(lambda: database.rows("SELECT FROM modak.mirror_slots WHERE last_error IS NOT NULL"), 60, "an error")
        command("status")
        command("sql", "SELECT * FROM t", code=1)
        log = tmp_path / "pump.log"
        await_true(lambda: '"trace_id' in log.read_text().replace("\\", ""), 60, "a span")
        (url,) = re.findall('"url": *"(http:[^"]*)"', log.read_text())
        for path in ("/", "/metrics", "/status.json", "/history.json", "/healthz"):
            outputs[path] = urlopen(url + path).read().decode()
        assert '"last_error"' in outputs["/status.json"]
    finally:
        program.kill(pump)
    for wrong, code in unusable(database).values():
        command("status", code=code, database_at=wrong)
    with database.connect() as connection:
        relations = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'modak'::regnamespace AND relkind IN ('r', 'v')"
        ).fetchall()
        catalog = [
            connection.execute(sql.SQL("SELECT t::text FROM modak.{} t").format(sql.Identifier(name))).fetchall()
            for (name,) in relations
        ]
    outputs |= {"command lines": lines, "log": (tmp_path / "pump.log").read_text(), "catalog": str(catalog)}
    outputs |= {str(path): path.read_text(errors="replace") for path in temporary.rglob("*") if path.is_file()}
    assert {name: shown_in(text) for name, text in outputs.items() if shown_in(text)} == {}


def unusable(database: Database) -> dict[str, tuple[str, int]]:
    """DSNs with the password that cannot be connected to, by what is wrong, and the exit code of a command."""
    where = f"127.0.0.1:{database.server.port}/{database.name}"
    quoted = quote(PASSWORD, safe="")
    return {
        "no server": (make_conninfo(database.dsn, port=1, password=PASSWORD), 1),
        "no role": (f"postgresql://u:{quoted}@{where}", 1),
        "no database": (make_conninfo(database.dsn, dbname="none", password=PASSWORD), 1),
        "no catalog": (make_conninfo(database.dsn, password=PASSWORD), 1),
        "host": (f"postgresql://u:{quoted}@[h", 2),
        "parameter": (f"password={quoted} host=x nonsense=1", 2),
        "value of a parameter": (f"postgresql://u:{quoted}@{where}?sslmode=nonsense", 2),
        "a slash in it": (f"postgresql://u:{PASSWORD}@{where}", 2),
        "a slash and digits in it": (f"postgresql://u:5432/{PASSWORD}@{where}", 2),
        "an at sign in it": (f"postgresql://u:x@{PASSWORD}@{where}", 2),
        "a blank in it": (f"host=127.0.0.1 password=x {PASSWORD}", 2),
    }


@pytest.mark.further
def test_no_secret_is_shown_on_a_terminal(database: Database, tmp_path: Path) -> None:
    """Not by a traceback either, which `--debug` prints."""
    (temporary := tmp_path / "temporary").mkdir()
    shown: dict[str, str] = {}

    def command(name: str, code: int, *arguments: str) -> None:
        shown[name] = on_a_terminal(program.command(*arguments), program.environment, code=code, columns=1000)

    for name, (dsn, code) in unusable(database).items():
        program = Program(dsn, tmp_path, {**KEYS, "TMPDIR": str(temporary)})
        command(name, code, "status", "--debug")
        assert "Traceback" in shown[name], shown[name]
    program = Program(database.dsn, tmp_path, {**KEYS, "TMPDIR": str(temporary)})
    dsn = f"postgresql://u:{quote(PASSWORD, safe='')}@127.0.0.1:1/d"
    command("argument", 2, "status", dsn)
    command("engine", 2, "connect", "--engine", "pyiceberg", "--dsn", f"postgresql://u:{PASSWORD}@h/d", "--debug")
    shown["a bug"] = on_a_terminal([sys.executable, "-c", _BUG, dsn], program.environment, code=1, columns=1000)
    shown |= {str(path): path.read_text(errors="replace") for path in temporary.rglob("*") if path.is_file()}
    assert {name: text for name, text in shown.items() if shown_in(text)} == {}


_BUG = """
import logging, sys, threading
from mirror_pump.runtime.telemetry import get_logger, install_hooks
dsn = sys.argv.pop()
class Site:
    def __init__(self, dsn):
        self.dsn = dsn
def fail(dsn):
    site, secrets = Site(dsn), {"password": dsn.split(":")[2].split("@")[0]}
    raise RuntimeError(f"cannot use {dsn} and {secrets}")
try:
    fail(dsn)
except RuntimeError as error:
    get_logger("before").error("the program has not begun", error=error, exc_info=True)
install_hooks()
for log in (get_logger("test").error, logging.getLogger("py4j").error):
    try:
        fail(dsn)
    except RuntimeError:
        log("an error", exc_info=True)
get_logger("test").info("fields", error=RuntimeError(dsn), found={"list": [dsn, {dsn: dsn}]})
thread = threading.Thread(target=fail, args=(dsn,))
thread.start()
thread.join()
import mirror_pump.cli.main
mirror_pump.cli.main.app = lambda **_: fail(dsn)
from mirror_pump.cli.__main__ import main
main()
"""


def test_help_shows_no_secret(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Click would show the values of variables of the environment as defaults, if it were told to."""
    for name, value in {**KEYS, "MIRROR_PUMP_DSN": f"postgresql://u:{quote(PASSWORD, safe='')}@h/d"}.items():
        monkeypatch.setenv(name, value)
    for name in ("", *cast("Any", get_command(app)).commands):
        result = run(*name.split(), "--help")
        assert result.exit_code == 0
        assert shown_in(result.output) == [], name
        assert "--storage-secret-key" not in result.output


def test_spark_shows_no_secret_among_its_settings(spark: SparkSession) -> None:
    """What its web interface would show, where somebody switches it on: `make soak` looks at the pages themselves."""
    dsn = make_conninfo("host=h dbname=d user=u", password=PASSWORD)
    secret, token, access = KEYS.values()
    properties = {"s3.secret-access-key": secret, "s3.session-token": token, "s3.access-key-id": access}
    catalogs = jdbc_catalog("lake", dsn, "s3://lake/x") | storage_conf("lake", "s3://lake/x", properties)
    assert set(shown_in(str(catalogs))) == {PASSWORD, *KEYS.values()}
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(key, value) for key, value in catalogs.items()])
    context: Any = spark.sparkContext
    text = str(jvm.org.apache.spark.util.Utils.redact(context._jsc.sc().conf(), settings).mkString("\n"))
    assert "spark.sql.catalog.lake.jdbc.user" in text
    assert shown_in(text) == []


_UI = """
import sys, urllib.request
from mirror_pump.engine.spark_runtime.session import SparkSettings, jdbc_catalog, spark_session, storage_conf
dsn, secret, token, access = sys.stdin.readline().rstrip("\\n").split("\\t")
properties = {"s3.secret-access-key": secret, "s3.session-token": token, "s3.access-key-id": access}
catalogs = jdbc_catalog("lake", dsn, "s3://lake/x") | storage_conf("lake", "s3://lake/x", properties)
del catalogs["spark.jars.packages"]
session = spark_session(SparkSettings(jars=False, conf={"spark.ui.enabled": "true", "spark.ui.port": "0"}), catalogs)
context = session.sparkContext
for page in ("/environment/", f"/api/v1/applications/{context.applicationId}/environment"):
    print(urllib.request.urlopen(context.uiWebUrl + page).read().decode())
print("SHOWN", flush=True)
sys.stdin.readline()
session.stop()
"""


@pytest.mark.soak
def test_sparks_web_interface_shows_no_secret() -> None:
    """Where somebody switches it on: by default there is none."""
    dsn = make_conninfo("host=h dbname=d user=u", password=PASSWORD)
    with subprocess.Popen(
        [sys.executable, "-c", _UI], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join((dsn, *KEYS.values())).encode() + b"\n")
        process.stdin.flush()
        shown = []
        for line in process.stdout:
            if line == b"SHOWN\n":
                break
            shown.append(line.decode())
        lines = command_lines(process)
        process.stdin.close()
    text = "".join(shown)
    assert "spark.sql.catalog.lake.jdbc.user" in text, "the catalog's settings are among them"
    assert "java" in lines
    assert (shown_in(text), shown_in(lines)) == ([], [])
