"""A password that changes while everything runs: password_command."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from mirror_pump.engine.spark_runtime.lake_sessions import LakeSessions
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import ConnectionLost
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.authentication import authenticated
from mirror_pump.runtime.password_command import RotatingDsn, printed_password
from mirror_pump.spark.reader import read
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.program import Program
from tests.support.pipeline import change_rows, writing


@dataclass(frozen=True)
class RotatingRole:
    """A role whose password a program prints, and each password that it had."""

    database: Database
    name: str
    file: Path
    passwords: list[str]

    @property
    def dsn(self) -> str:
        """Without a password."""
        server = self.database.server
        return make_conninfo(host="127.0.0.1", port=server.port, dbname=self.database.name, user=self.name)

    @property
    def command(self) -> str:
        """Prints the password, with what a program may print besides, and counts its runs."""
        script = "import sys; print(open(sys.argv[1]).read()); print('never shown'); open(sys.argv[1] + '.runs', 'a')"
        return shlex.join([sys.executable, "-c", f"{script}.write('.')", str(self.file)])

    @property
    def runs(self) -> int:
        """How often the program has run."""
        counted = self.file.with_name(self.file.name + ".runs")
        return len(counted.read_text()) if counted.exists() else 0

    def rotate(self, *, ends_sessions: bool = True) -> None:
        """Changes the password, and ends all sessions: each connection has to be opened again."""
        password = f"it's \\{os.urandom(8).hex()} %40"
        quoted = password.replace("\\", "\\\\").replace("'", "''")
        self.database.execute(f"ALTER ROLE {self.name} PASSWORD E'{quoted}'")
        self.file.write_text(password)
        self.passwords.append(password)
        if ends_sessions:
            sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
            self.database.rows(sessions, (self.name,))

    def assert_former_refused(self) -> None:
        """Fails unless the server asks this role for its password, and refuses all but the last."""
        for password in self.passwords[:-1]:
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(make_conninfo(self.dsn, password=password))
        psycopg.connect(make_conninfo(self.dsn, password=self.passwords[-1])).close()


@pytest.fixture
def role(database: Database, tmp_path: Path) -> Iterator[RotatingRole]:
    role = RotatingRole(database, f"rotating_{os.urandom(4).hex()}", tmp_path / "password", [])
    database.execute(f"CREATE ROLE {role.name} LOGIN SUPERUSER REPLICATION")
    role.rotate()
    yield role
    database.execute(f"REASSIGN OWNED BY {role.name} TO postgres", f"DROP OWNED BY {role.name}")
    database.execute(f"DROP ROLE {role.name}")


@pytest.mark.further
@pytest.mark.parametrize("runs", ["tasks", "runner"])
def test_everything_goes_on_while_the_password_changes(
    database: Database, warehouse: str, role: RotatingRole, request: pytest.FixtureRequest, runs: str
) -> None:
    """At each step all sessions end, and the former password is refused. By threads and by Spark's workers."""
    runner: TaskRunner = request.getfixturevalue(runs)
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, g % 1000, repeat('v', 40), CASE WHEN g % 100 = 0 THEN repeat(md5(g::text), 100) END"
        " FROM generate_series(1, 20000) g",
    )
    mirror = Mirror.create(
        database,
        warehouse,
        runner,
        dsn=role.dsn,
        password_command=role.command,
        limits=paced(0.3),
        copy_chunk_bytes=1 << 17,
        copy_workers=2,
    )
    steps = Steps()
    with mirror.pumping(steps), writing(database, change_rows("t", 20_000), 1) as written:
        role.rotate()
        mirror.register("t")
        for chunks in (1, 4, 8):
            await_true(partial(_has_copied, steps, chunks), 60, f"{chunks} chunks")
            role.rotate()
        mirror.await_live("public.t", seconds=120)
        for _ in range(3):
            role.rotate()
            before = written()
            await_true(partial(_has_grown, written, before), 60, "rows change")
            mirror.await_frontier()
    role.rotate()
    with mirror.pumping():
        mirror.await_frontier()
    mirror.assert_equal("public.t")
    mirror.assert_sound()
    role.assert_former_refused()
    assert not [password for password in role.passwords if password in str(steps.occurrences)]


def _has_copied(steps: Steps, chunks: int) -> bool:
    return steps.count(Step.CHUNK_COPIED) >= chunks


def _has_grown(count: Callable[[], int], before: int) -> bool:
    return count() > before + 5


@pytest.mark.further
def test_commands_use_the_program(
    database: Database, warehouse: str, role: RotatingRole, tasks: TaskRunner, tmp_path: Path
) -> None:
    """Each in a process of its own, which runs the program once; none prints the password."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 100)",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    mirror = Mirror.create(database, warehouse, tasks, dsn=role.dsn, password_command=role.command)
    mirror.register("t")
    mirror.catch_up()
    environment = {
        **Program(role.dsn, tmp_path).environment,
        "MIRROR_PUMP_SLOT": mirror.settings.slot,
        "MIRROR_PUMP_PUBLICATION": mirror.settings.slot,
        "MIRROR_PUMP_PASSWORD_COMMAND": role.command,
    }
    for arguments, expected in (
        (("register", "u"), "u"),
        (("status", "--json"), '"public.t"'),
        (("sql", "SELECT count(*) AS rows FROM t", "--mode", "hybrid"), "100"),
        (("verify", "t"), "t"),
        (("config", "--show"), "password_command"),
        (("connect", "--engine", "pyiceberg"), "PGPASSWORD"),
    ):
        role.rotate()
        before = role.runs
        result = subprocess.run(
            [sys.executable, "-m", "mirror_pump.cli", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        output = result.stdout + result.stderr
        assert result.returncode == 0, f"{arguments}: {output}"
        assert expected in result.stdout, f"{arguments}: {output}"
        # verify starts a process that catches up.
        assert before < role.runs <= before + 1 + (arguments[0] == "verify"), arguments
        assert not [text for text in (*role.passwords, "never shown") if text in output], arguments
    role.assert_former_refused()


@pytest.mark.further
def test_sparks_own_connections_use_the_program(
    database: Database, warehouse: str, role: RotatingRole, tasks: TaskRunner, spark: SparkSession
) -> None:
    """Those of maintenance, and of a heap that is read after the password has changed once more."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    mirror = Mirror.create(database, warehouse, tasks, dsn=role.dsn, password_command=role.command)
    mirror.register("t")
    mirror.catch_up()
    sessions = LakeSessions(spark, mirror.settings.require_dsn())
    for _ in range(2):
        assert sessions.session(warehouse, {}).sql("SELECT count(*) FROM lake.public.t").collect() == [(100,)]
        role.rotate()
    database.execute("INSERT INTO t VALUES (101)")
    with read(spark, "t", "heap", settings=mirror.settings) as frame:
        role.rotate(ends_sessions=False)
        assert frame.count() == 101


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("/nonexistent/program", "cannot be started: No such file or directory", 2),
        ("sh -c 'echo secret; echo first >&2; echo no token >&2; exit 3'", "failed with exit code 3: no token", 1),
        ("true", "printed no password", 1),
        ("echo wrong-secret", "authentication failed", 1),
        ("echo 'unclosed", "No closing quotation", 2),
        ("''", "", 2),
    ],
)
def test_a_program_that_fails_is_named(
    database: Database, role: RotatingRole, tmp_path: Path, command: str, text: str, code: int
) -> None:
    program = Program(role.dsn, tmp_path, {"MIRROR_PUMP_PASSWORD_COMMAND": command, "MIRROR_PUMP_SLOT": "any"})
    program.run("status", code=code)
    output = (tmp_path / "status.log").read_text()
    assert text in output
    assert "secret" not in output
    assert "Traceback" not in output


def test_a_connection_string_with_a_password_is_refused(database: Database, tmp_path: Path) -> None:
    """Nobody knows which of the two is meant."""
    program = Program(database.dsn, tmp_path, {"MIRROR_PUMP_PASSWORD_COMMAND": "echo other"})
    program.run("status", code=2)
    assert "remove one of the two" in (tmp_path / "status.log").read_text()


def test_a_program_that_does_not_end_is_ended_with_its_children() -> None:
    with pytest.raises(ConnectionLost, match="took longer than"):
        printed_password(["sh", "-c", "echo secret; sleep 100 & sleep 100"], seconds=0.2)


def test_threads_share_a_new_password(tmp_path: Path) -> None:
    """The program runs once for all that were refused with the former password."""
    file = tmp_path / "runs"
    dsn = RotatingDsn("host=nowhere", f"sh -c 'echo run >> {file}; wc -l < {file}'", "0")

    def password(_: int) -> str:
        return authenticated(dsn, accept, lambda error: isinstance(error, PermissionError))

    def accept(given: str) -> str:
        if "password=0" in given:
            raise PermissionError
        return given

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(password, range(64))) == {"host=nowhere password=1"}
    assert file.read_text() == "run\n"
    assert pickle.loads(pickle.dumps(dsn)).password == "0"
