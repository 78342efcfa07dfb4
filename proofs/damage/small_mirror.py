"""A small mirror with everything that can be damaged, and its restoration: the server's files and the lake's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

from mirror_pump.model import FeedMode, TableMode
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.settings.config import Settings
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.mirror import QUICK, Mirror, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from proofs.damage.table_files import TableFiles

PLAIN = ("orders", "items", "others")
"""Tables of which lake and heap have all rows. `orders` has deletes in files and a change feed, the others are of
format version 3 and have deletion vectors."""
EVENTS = "events"
"""With heap retention: two of its four partitions have left the heap."""
LEDGER = "ledger"
"""Tiered; its partitions stay in the heap."""
MOMENT = "close"
ROWS = 40

_LIMITS = QUICK.model_copy(update={"lake_watch_interval": 0.1})
_SETTINGS = {"retention_interval": 0.1, "convert_age": 0, "convert_rows": 1, "merge_bytes": 0, "limits": _LIMITS}


class SmallMirror:
    """The mirror. `directory` is empty, and best in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lake = directory / "lake"
        self._lake.mkdir()
        self.server = EmbeddedPostgres(
            directory / "server", settings={"shared_buffers": "32MB", "min_wal_size": "32MB"}
        )
        self.runner = ThreadTaskRunner()
        self.server.start()
        self.server.create_database("shop")
        self.database = Database(self.server, "shop")
        self.mirror = Mirror.create(
            self.database,
            self._lake.as_uri(),
            self.runner,
            slot="shop",
            **_SETTINGS,  # type: ignore[arg-type]
        )

    @classmethod
    @contextmanager
    def made(cls, directory: Path) -> Iterator[SmallMirror]:
        """The mirror, complete and at rest. Its server ends with the block."""
        with keeping_connections():
            mirror = cls(directory)
            try:
                mirror._fill()
                mirror._keep()
                yield mirror
            finally:
                mirror.server.close()
                mirror.runner.close()

    @property
    def settings(self) -> Settings:
        return self.mirror.settings

    def execute(self, *statements: str) -> None:
        """Runs statements in one transaction, as a superuser without foreign keys and triggers of users."""
        with self.database.session() as connection, connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                connection.execute(statement.encode())

    def value(self, query: LiteralString) -> Any:
        """The only value of a query."""
        ((value,),) = self.database.rows(query)
        return value

    def table(self, name: str) -> TableFiles:
        """The files of a table, as of its pointer."""
        return TableFiles(self.mirror.location(f"public.{name}"))

    @property
    def archive(self) -> TableFiles:
        """The published snapshot of the table with heap retention, in its own metadata file."""
        return TableFiles(
            self.value(
                "SELECT lake_props ->> 'metadata_location' FROM modak.cutline"
                " WHERE table_id = 'public.events'::regclass::oid::bigint"
            )
        )

    @property
    def feed(self) -> TableFiles:
        """The change feed of `orders`."""
        return TableFiles(
            self.value(
                "SELECT i.metadata_location FROM modak.change_feeds f JOIN modak.iceberg_tables i"
                " ON (i.table_namespace, i.table_name) = (f.namespace, f.name)"
                " WHERE f.feed_id = 'public.orders'::regclass::oid::bigint"
            )
        )

    @property
    def moment(self) -> TableFiles:
        """What the moment has of `items`."""
        return TableFiles(
            self.value(
                "SELECT metadata_location FROM modak.moment_tables"
                " WHERE table_id = 'public.items'::regclass::oid::bigint"
            )
        )

    def change(self, number: int) -> None:
        """A change of each table, and of its model."""
        statements = []
        for table in PLAIN:
            for name in (table, f"model_{table}"):
                statements += [
                    f"INSERT INTO {name} VALUES ({1000 + number}, 'later', {number})",
                    f"UPDATE {name} SET v = 'changed {number}' WHERE id = {5 + number}",
                    f"DELETE FROM {name} WHERE id = {20 + number}",
                ]
        for name in (EVENTS, f"model_{EVENTS}"):
            statements += [
                f"INSERT INTO {name} VALUES (350, {1000 + number}, 'later')",
                f"UPDATE {name} SET v = 'changed {number}' WHERE (at, id) = (250, {5 + number})",
            ]
        with self.database.session() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def restore(self) -> None:
        """Everything is as it was kept."""
        self.database.reconnect()
        self.server.stop("immediate")
        for part in ("server/data", "lake"):
            self._copy(self._directory / "kept" / part, self._directory / part)
        self.server.start()

    def _keep(self) -> None:
        self.database.reconnect()
        self.server.stop()
        for part in ("server/data", "lake"):
            self._copy(self._directory / part, self._directory / "kept" / part)
        self.server.start()

    def _copy(self, source: Path, target: Path) -> None:
        subprocess.run(["rm", "-rf", str(target)], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)

    def _fill(self) -> None:
        self._create()
        mirror = self.mirror
        mirror.register("orders", feed=FeedOptions(FeedMode.ROWS), format_version=2)
        mirror.register("items", "others", format_version=3)
        mirror.register(
            "events", retention=RetentionOptions(lag="100", premake=0, width=None, drop_grace="0", lake_partition="100")
        )
        tiered = RetentionOptions(
            lag="100", premake=0, width=None, drop_grace=None, mode=TableMode.TIERED, keep_heap=True
        )
        mirror.register("ledger", retention=tiered)
        with mirror.pumping():
            mirror.await_live(*(f"public.{table}" for table in (*PLAIN, EVENTS)))
            self.change(0)
            mirror.await_frontier()
            await_true(self._is_at_rest, 60, "deletes are by position, and partitions have left")
            keep(self.settings, MomentOptions(MOMENT))
            self.change(1)
            self.database.execute(
                'SELECT modak.upsert(\'events\', \'{"at": 50, "id": 10, "v": "corrected"}\')',
                "UPDATE model_events SET v = 'corrected' WHERE (at, id) = (50, 10)",
            )
            mirror.await_frontier()
            await_true(self._is_at_rest, 60, "deletes are by position")

    def _create(self) -> None:
        statements = []
        for factor, table in enumerate(PLAIN, 1):
            for name in (table, f"model_{table}"):
                statements += [
                    f"CREATE TABLE {name} (id int PRIMARY KEY, v text, n int)",
                    f"INSERT INTO {name} SELECT g, 'v' || g, g * {factor} FROM generate_series(1, {ROWS}) g",
                ]
        for table in (EVENTS, LEDGER):
            columns = "at bigint, id bigint, v text, PRIMARY KEY (at, id)"
            statements.append(f"CREATE TABLE {table} ({columns}) PARTITION BY RANGE (at)")
            statements += [
                f"CREATE TABLE {table}_{number} PARTITION OF {table} FOR VALUES FROM ({number}00) TO ({number + 1}00)"
                for number in range(4)
            ]
            statements.append(f"CREATE TABLE model_{table} ({columns})")
            statements += [
                f"INSERT INTO {name} SELECT p * 100 + 50, g, 'v' || g"
                " FROM generate_series(0, 3) p, generate_series(1, 20) g"
                for name in (table, f"model_{table}")
            ]
        with self.database.session() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _is_at_rest(self) -> bool:
        for table in (*PLAIN, EVENTS):
            files = self.table(table)
            if any(entry["data_file"]["content"] == 2 for manifest in files.manifests for entry in manifest.live):
                return False
        states = dict(self.database.rows("SELECT partition_id, state FROM modak.partitions"))
        return [states.get(f"public.events_{number}") for number in range(2)] == ["dropped"] * 2 and states.get(
            "public.ledger_1"
        ) == "tiered"
