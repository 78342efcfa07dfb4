"""Servers that pg_upgrade takes to another major version, from the installations of PostgreSQL that this machine has.

An older server is looked for in MIRROR_PUMP_POSTGRES_15 (and so on), build/postgres/15 and /usr/lib/postgresql/15. It
needs pg_controldata and pg_resetwal besides the server; pg_upgrade and the clients are those of the newer one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import Runner, install_directory
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.postgres import EmbeddedPostgres

DATABASE = "shop"

_ROOT = Path(__file__).parents[2]
_FOR_UPGRADES = ("postgres", "initdb", "pg_ctl", "pg_controldata", "pg_resetwal")
"""What pg_upgrade and these tests run of an older installation. Packages of servers alone lack the last two."""
_SMALL = {"shared_buffers": "32MB", "max_wal_size": "256MB", "min_wal_size": "32MB", "autovacuum": "off"}
"""autovacuum writes to the database, which may come between the end of the pump and that of the server."""


@cache
def installation(major: int) -> Path | None:
    """The directory with `bin/postgres` of this major version; None if this machine has none."""
    named = os.environ.get(f"MIRROR_PUMP_POSTGRES_{major}")
    candidates = (named and Path(named), _ROOT / "build/postgres" / str(major), Path(f"/usr/lib/postgresql/{major}"))
    for directory in (*(path for path in candidates if path), install_directory()):
        complete = all((directory / "bin" / name).exists() for name in _FOR_UPGRADES)
        if complete and _major_of(directory) == major:
            return directory
    return None


def require(major: int) -> Path:
    """As `installation`. Skips the test if there is none."""
    directory = installation(major)
    if directory is None:
        pytest.skip(f"no PostgreSQL {major} with pg_resetwal here: name its directory in MIRROR_PUMP_POSTGRES_{major}")
    return directory


def require_upgrader() -> Path:
    """The directory of the server that the tests run on. Skips the test if that has no pg_upgrade."""
    directory = install_directory()
    if not (directory / "bin/pg_upgrade").exists():
        pytest.skip(f"{directory} has no pg_upgrade")
    return directory


def _major_of(directory: Path) -> int:
    text = subprocess.run([directory / "bin/postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r" (\d+)", text)
    assert match is not None
    return int(match[1])


class InstalledPostgres(EmbeddedPostgres):
    """A server of a certain installation."""

    def __init__(self, directory: Path, install: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings={**_SMALL, **(settings or {})})
        self._install = install
        self.major = _major_of(install)

    def initialise(self, password: str) -> None:
        """Makes a new cluster, as old versions and pg_upgrade need it."""
        self.directory.mkdir()
        self._runner.own(self.directory)
        secret = self.directory / "password"
        secret.write_text(password)
        self._runner.own(secret)
        options = ["--no-data-checksums"] if self.major >= 18 else []
        iterations = ["-c", "scram_iterations=1"] if self.major >= 16 else []
        run(
            self._install / "bin/initdb", f"--pgdata={self.data}", "--username=postgres", f"--pwfile={secret}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", *options, *iterations,
        )  # fmt: skip

    @property
    def data(self) -> Path:
        return self._data

    @property
    def programs(self) -> Path:
        return self._install / "bin"


def run(program: Path, *arguments: object, cwd: Path | None = None, code: int = 0) -> str:
    """Runs a program of a server as the server's user. Returns its output."""
    command = [str(program), *map(str, arguments)]
    changed = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command] if cwd else command
    status, output = Runner.choose().run(changed, timeout=240)
    assert status == code, f"{command}: {output}"
    return output


def old_server(root: Path, major: int, settings: Mapping[str, str] | None = None) -> InstalledPostgres:
    """A running server with the database. Its files are in `root`, which the server's user may enter."""
    server = InstalledPostgres(root / f"old-{major}", require(major), settings)
    server.initialise("secret")
    server.start()
    server.create_database(DATABASE)
    return server


def upgraded(old: InstalledPostgres, root: Path, *, settings: Mapping[str, str] | None = None) -> InstalledPostgres:
    """Stops the old server and has pg_upgrade copy it into a new one, which runs afterwards."""
    new = prepared(root, settings)
    old.stop()
    upgrade(old, new)
    new.start()
    return new


def prepared(root: Path, settings: Mapping[str, str] | None = None) -> InstalledPostgres:
    """An empty cluster of the version that the tests run on. It does not run."""
    new = InstalledPostgres(root / "new", require_upgrader(), settings)
    new.initialise("secret")
    return new


def upgrade(old: InstalledPostgres, new: InstalledPostgres) -> str:
    """Runs pg_upgrade with two servers that do not run. Returns its output."""
    os.environ["PGPASSWORD"] = "secret"
    options = "-c wal_level=logical -c max_replication_slots=10 -c autovacuum=off -c fsync=off"
    try:
        return run(
            new.programs / "pg_upgrade", "--username=postgres", "--copy", "--no-sync",
            "-b", old.programs, "-B", new.programs, "-d", old.data, "-D", new.data, "-s", new.directory,
            "-o", options, "-O", options,
            cwd=new.directory,
        )  # fmt: skip
    finally:
        del os.environ["PGPASSWORD"]


def mirror_on(server: EmbeddedPostgres, mirror: Mirror) -> Mirror:
    """The mirror, whose database is on this server now."""
    database = Database(server, DATABASE)
    return Mirror(database, mirror.settings.model_copy(update={"dsn": database.dsn}), mirror.runner)
