"""Servers that pg_upgrade takes to another major version, from the installations of PostgreSQL that this machine has.

An older server is looked for in MIRROR_PUMP_POSTGRES_15 (and so on), build/postgres/15 and /usr/lib/postgresql/15. It
needs pg_controldata and pg_resetwal besides the server; pg_upgrade and the clients are those of the newer one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.model import FeedMode
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.source.stream.drained_slot import drain_slot
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import Runner, install_directory
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, lake_rows
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.events_table import EventsTable, upsert
from tests.support.moments import kept_moment
from tests.support.replicas import hand_over
from tests.support.tiered import tiered

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
        self._runner.give(self.directory)
        secret = self.directory / "password"
        secret.write_text(password)
        self._runner.give(secret)
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


@dataclass
class UpgradedShop:
    """A mirror of every kind of table, whose server becomes another one.

    `t` has an enum, values out of line and a feed, `p` is partitioned, `events` has heap retention and `logs` is
    tiered: the lake alone has their oldest rows, one of them corrected. Both have a model, a plain table.
    """

    mirror: Mirror
    events: EventsTable
    logs: EventsTable
    t_rows: list[Row] = field(default_factory=list)
    """Those of the moment `before`."""
    starts: dict[str, Any] = field(default_factory=dict)
    """The start and generation of each table's copy when the mirror was drained."""

    @classmethod
    def on(cls, server: EmbeddedPostgres, warehouse: str, runner: TaskRunner) -> Self:
        database = Database(server, DATABASE)
        database.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'glad')",
            "CREATE TABLE t (id int PRIMARY KEY, gone int, m mood DEFAULT 'sad', v text, big text)",
            "ALTER TABLE t DROP COLUMN gone",
            "INSERT INTO t SELECT g, 'glad', 'first', repeat(md5(g::text), 90) FROM generate_series(1, 200) g",
            "CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)",
            "CREATE TABLE pa PARTITION OF p FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE pb PARTITION OF p FOR VALUES FROM (10) TO (20)",
            "INSERT INTO p SELECT g, g % 20, 'first' FROM generate_series(1, 100) g",
        )
        mirror = Mirror.create(database, warehouse, runner, retention_interval=0.1)
        mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
        mirror.register("p")
        events = EventsTable.automatic(mirror, partitions=4, rows=20)
        logs = EventsTable.automatic(
            mirror, partitions=4, rows=20, lag=None, name="logs", model="logs_model", prefix="l"
        )
        mirror.register("logs", retention=tiered())
        shop = cls(mirror, events, logs)
        gone = "SELECT count(*) FROM modak.partitions WHERE state = 'dropped'"
        with mirror.pumping():
            await_true(lambda: database.rows(gone) >= [(4,)], 60, "partitions left both heaps")
            keep(mirror.settings, MomentOptions("before"))
        shop.t_rows = mirror.heap("public.t")
        shop.change("old")
        return shop

    @property
    def database(self) -> Database:
        return self.mirror.database

    def change(self, value: str) -> None:
        """Changes rows of every table, above the cut-line and below."""
        self.database.execute(
            f"UPDATE t SET v = '{value}', m = 'sad' WHERE id % 7 = 0",
            "DELETE FROM t WHERE id % 11 = 0",
            f"INSERT INTO t SELECT max(id) + 1, 'glad', '{value}', repeat('{value}', 900) FROM t",
            f"UPDATE p SET v = '{value}' WHERE id % 5 = 0",
            f"INSERT INTO p SELECT max(id) + 1, 3, '{value}' FROM p",
        )
        with self.database.connect(autocommit=False) as connection:
            for table, model in (("events", "model"), ("logs", "logs_model")):
                upsert(connection, 5, 1, value, table, model)
                upsert(connection, 320, 7, value, table, model)

    def drain(self) -> None:
        """As `mirror-pump run --drain`."""
        settings = self.mirror.settings
        self.mirror.catch_up()
        while drain_slot(self.database.dsn, settings.slot, settings.publication) is None:
            self.mirror.catch_up()
        self.starts = self.copies()

    def copies(self) -> dict[str, Any]:
        rows = self.database.rows("SELECT table_id, start_lsn, generation FROM modak.mirror_tables")
        return {table_id: (start, generation) for table_id, start, generation in rows}

    def moved_to(self, server: EmbeddedPostgres) -> UpgradedShop:
        """The same mirror on another server."""
        database = Database(server, DATABASE)
        settings = self.mirror.settings.model_copy(update={"dsn": database.dsn})
        mirror = Mirror(database, settings, self.mirror.runner)
        return replace(
            self,
            mirror=mirror,
            events=replace(self.events, database=database, mirror=mirror),
            logs=replace(self.logs, database=database, mirror=mirror),
        )

    def feed(self) -> list[Any]:
        """What the feed of `t` has, in order, without the numbers."""
        location = self.mirror.location("public.t__changes")
        rows = read_duckdb(location, "SELECT _op FROM lake ORDER BY _lsn, _seq").to_pylist()
        return [row["_op"] for row in rows]

    def assert_right(self) -> None:
        """Each table and the moment are what they have to be, and the frontier has never moved back."""
        self.mirror.assert_equal("public.t", "public.p")
        self.events.assert_exact()
        self.logs.assert_exact()
        assert_moment_has(self.mirror, "before", "public.t", self.t_rows)
        self.mirror.assert_sound()
        moves = self.database.rows("SELECT former, present FROM audit.frontiers ORDER BY seen")
        assert all(former < present for former, present in moves)

    def assert_goes_on(self) -> None:
        """Changes are mirrored, a further partition leaves each heap, and all is right."""
        cuts = self.events.cut, self.logs.cut
        with self.mirror.pumping():
            self.change("new")
            self.events.grow()
            self.logs.grow()
            await_true(lambda: self.events.cut > cuts[0] and self.logs.cut > cuts[1], 60, "the cut-lines move")
            self.mirror.await_frontier()
        self.assert_right()


def assert_moment_has(mirror: Mirror, name: str, table: str, rows: list[Row]) -> None:
    """The moment has these rows of a table, as DuckDB reads them from its own metadata file."""
    (location,) = (entry.main_location for entry in kept_moment(mirror, name).tables if str(entry.table) == table)
    assert_same(rows, lake_rows(location), f"{table} at {name}")


@contextmanager
def blue_green(root: Path, shop: UpgradedShop, blue: InstalledPostgres) -> Iterator[InstalledPostgres]:
    """A copy of the server's files that pg_upgrade made another cluster, and that logical replication keeps up with the
    whole database, as services do it. Both servers run; the subscription is `green`."""
    settings = {"max_logical_replication_workers": "4"}
    shop.database.execute(
        "CREATE PUBLICATION blue FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('blue', 'pgoutput')",
    )
    blue.stop()
    copy = InstalledPostgres(root / "copy", blue.programs.parent)
    shutil.copytree(blue.directory, copy.directory, symlinks=True)
    for slot in (copy.data / "pg_replslot").iterdir():
        shutil.rmtree(slot)
    hand_over(copy.directory)
    copy.start()
    green = upgraded(copy, root, settings=settings)
    blue.start()
    try:
        with psycopg.connect(green.dsn(DATABASE), autocommit=True) as connection:
            connection.execute(
                f"CREATE SUBSCRIPTION green CONNECTION '{blue.dsn(DATABASE)}' PUBLICATION blue"
                " WITH (create_slot = false, slot_name = 'blue', copy_data = false)"
            )
        yield green
    finally:
        green.close()


def switch_over(blue: UpgradedShop, green: UpgradedShop) -> None:
    """What a service does once writers and pump have stopped: green has everything, its sequences too, and no
    subscription any more."""
    end = blue.database.lsn()
    position = "SELECT confirmed_flush_lsn - '0/0' >= %s FROM pg_replication_slots WHERE slot_name = 'blue'"
    await_true(lambda: blue.database.rows(position, (end,)) == [(True,)], 60, "green has everything")
    green.database.execute("ALTER SUBSCRIPTION green DISABLE")
