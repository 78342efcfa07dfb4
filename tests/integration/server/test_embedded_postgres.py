"""The server that every other integration test relies on: it is set up for the mirror, and stops when it should."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import VARIABLE, PostgresFailed, Runner, install_directory, major_version
from mirror_pump.testing.postgres import EmbeddedPostgres

pytestmark = pytest.mark.further


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie waits for init; it serves nobody.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        tick.wait(0.02)


def _pid(server: EmbeddedPostgres) -> int:
    return int((server.directory / "data" / "postmaster.pid").read_text().splitlines()[0])


def test_it_is_set_up_for_logical_replication(postgres: EmbeddedPostgres, database: Database) -> None:
    settings = dict(
        database.rows(
            "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'server_encoding', 'TimeZone',"
            " 'listen_addresses', 'fsync', 'server_version_num')"
        )
    )
    assert int(settings.pop("server_version_num")) // 10_000 == major_version()
    assert settings == {
        "wal_level": "logical",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "listen_addresses": "127.0.0.1",
        "fsync": "off",
    }
    assert database.rows("SELECT current_database()") == [(database.name,)]
    assert postgres.binary("pg_recvlogical").exists()


def test_client_programs_take_the_dsn(postgres: EmbeddedPostgres, database: Database) -> None:
    pgbench = [str(postgres.binary("pgbench")), "--initialize", "--quiet", "--scale=1", database.dsn]
    subprocess.run(pgbench, check=True, capture_output=True, timeout=60)
    assert database.rows("SELECT count(*) FROM pgbench_accounts") == [(100_000,)]


def test_a_password_is_required(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"password|fe_sendauth"):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres", passfile="/nonexistent")


def test_a_database_goes_with_its_slots_and_sessions(postgres: EmbeddedPostgres) -> None:
    with postgres.database("with_slots") as dsn:
        psycopg.connect(dsn, autocommit=True).execute("SELECT pg_create_logical_replication_slot('left', 'pgoutput')")
        receiver = subprocess.Popen(
            [
                str(postgres.binary("pg_recvlogical")), "--dbname", dsn, "--slot=left", "--start", "--file=/dev/null",
                "--no-loop", "-o", "proto_version=1", "-o", "publication_names=none",
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            query = "SELECT active FROM pg_replication_slots WHERE slot_name = 'left'"
            _wait(lambda: connection.execute(query).fetchone() == (True,))
    receiver.wait(60)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'left'").fetchone() == (
            0,
        )
        assert connection.execute("SELECT count(*) FROM pg_database WHERE datname = 'with_slots'").fetchone() == (0,)


def test_a_crash_keeps_what_was_committed_and_the_port() -> None:
    with EmbeddedPostgres(settings={"shared_buffers": "16MB"}) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
            connection.execute("CHECKPOINT")
        before = _pid(server)
        server.restart("immediate")
        assert _pid(server) != before
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        directory, pid = server.directory, _pid(server)
    assert not _alive(pid)
    assert not directory.exists()
    server.close()


def test_named_files_survive_and_are_served_by_one_server_at_a_time() -> None:
    # Not below pytest's directory, which only our user may enter: the server may run as another user.
    with tempfile.TemporaryDirectory(prefix="mirror-pump-test-") as parent:
        Path(parent).chmod(0o755)
        place = Path(parent) / "server"
        with EmbeddedPostgres(place, fsync=True, settings={"shared_buffers": "16MB"}) as first:
            first.create_database("kept")
            with pytest.raises(PostgresFailed, match="already"), EmbeddedPostgres(place):
                pass
            assert _alive(_pid(first)), "the second must not have stopped the first"
        with EmbeddedPostgres(place, settings={"shared_buffers": "16MB"}) as again, psycopg.connect(again.dsn("kept")):
            pass


def test_a_server_that_cannot_start_says_why() -> None:
    server = EmbeddedPostgres(settings={"shared_buffers": "no size"})
    with pytest.raises(PostgresFailed, match="shared_buffers"):
        server.start()
    assert not server.directory.exists()


def test_another_installation_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(install_directory()))
    assert EmbeddedPostgres(tmp_path / "unused").binary("initdb").exists()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(PostgresFailed, match="no bin/initdb"):
        EmbeddedPostgres(tmp_path / "unused")


_CHILD = """
import sys
from mirror_pump.testing.postgres import EmbeddedPostgres
server = EmbeddedPostgres(settings={"shared_buffers": "16MB"})
server.start()
print(server.directory, flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_process_however_that_ends(end: str | signal.Signals) -> None:
    stays = "wait" if isinstance(end, signal.Signals) else "exit"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, stays], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    directory = Path(child.stdout.readline().strip())
    with contextlib.suppress(FileNotFoundError):
        pid = int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])
        if isinstance(end, signal.Signals):
            assert _alive(pid)
            child.send_signal(end)
        _wait(lambda: not _alive(pid))
    child.communicate(timeout=60)
    _wait(lambda: not directory.exists())


def test_a_server_out_of_the_runners_reach_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout in a home directory that the unprivileged user may not enter."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(Runner, "may_read", lambda *_: False)
    with EmbeddedPostgres(settings={"shared_buffers": "16MB"}) as server:
        assert server.binary("postgres").is_relative_to(server.directory)
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        version = subprocess.run([str(server.binary("psql")), "--version"], capture_output=True, text=True, check=True)
        assert "18." in version.stdout
