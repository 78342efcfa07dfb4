"""A mirror and a maintainer for it, for the tests of maintenance."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.maintenance.journal import Heartbeat
from mirror_pump.ops.maintenance.maintenance_pass import Maintenance, MaintenanceBacklog, PassResult
from mirror_pump.pipeline.publish.catalog_tables import CatalogTables
from mirror_pump.source.catalog.maintenance import change_policy, file_request
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import queries
from tests.support.pipeline import in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORAGE = StorageOptions(fsync=False)
MIB = 1 << 20
T = "public.t"
"""The table of `prepare`."""


@dataclass(frozen=True)
class Maintained:
    """A mirror, and a Spark that maintains it."""

    mirror: Mirror
    spark: SparkSession
    spark_dsn: str | None = None
    """How Spark reaches the catalog; None: as the mirror does."""

    def rewrite_since(self, name: str) -> int | None:
        """The sequence number at the begin of the rewrite of the table's files that publishes take account of."""
        table_id = self.table_id(name)
        with connect(self.mirror.database.dsn, autocommit=True) as connection:
            tables = CatalogTables(lambda: connection, self.mirror.settings.slot, STORAGE)
            return tables.registrations([table_id])[table_id].rewrite_since

    @cached_property
    def session(self) -> SparkSession:
        """A session with the mirror's catalog. All share one, as in a maintainer: a session's catalog keeps its
        connections until the JVM happens to collect it."""
        dsn = self.spark_dsn or self.mirror.settings.require_dsn()
        return lake_session(self.spark, dsn, self.mirror.settings.require_warehouse())

    @contextmanager
    def maintainer(self, starting: Callable[[], None] = lambda: None) -> Iterator[Maintenance]:
        """A maintainer with its own connection and heartbeat. `starting` is called whenever it needs Spark."""
        dsn = self.mirror.settings.require_dsn()
        session = self.session

        def start() -> Procedures:
            starting()
            return Procedures(session)

        with connect(dsn, autocommit=True) as connection, Heartbeat(dsn) as heartbeat:
            yield Maintenance(connection, self.mirror.settings.slot, STORAGE, start, heartbeat)

    def table_id(self, table: str) -> TableId:
        """The OID of `schema.name`."""
        return TableId(self.mirror.database.rows("SELECT %s::regclass::oid::bigint", (table,))[0][0])

    def policy(self, table: str, **values: Any) -> None:
        """Sets keys of the table's policy; nothing is validated."""
        with self.mirror.database.session() as connection:
            change_policy(connection, self.table_id(table), values)

    def request(self, table: str) -> None:
        """Files a request."""
        with self.mirror.database.session() as connection:
            file_request(connection, self.table_id(table), "test")

    def maintain(self, table: str, *, requested: bool = True) -> PassResult:
        """One pass, which has to take place; by default a requested one."""
        if requested:
            self.request(table)
        with self.maintainer() as maintainer:
            result = maintainer.maintain(self.table_id(table))
        assert result is not None
        return result

    def backlog(self, table: str) -> MaintenanceBacklog:
        """The table's backlog now."""
        with self.maintainer() as maintainer:
            (backlog,) = maintainer.read_backlogs([self.table_id(table)])
        return backlog

    def lake_table(self, table: str) -> LakeTable:
        """The lake table that the catalog names now."""
        return LakeTable.load(self.mirror.location(table), STORAGE)

    def published(self, table: str) -> tuple[int, str]:
        """The published snapshot and the metadata file that cutline names."""
        ((snapshot, location),) = self.mirror.database.rows(
            "SELECT lake_snapshot_id, lake_props ->> 'metadata_location' FROM modak.cutline WHERE table_id = %s",
            (self.table_id(table),),
        )
        return int(snapshot), str(location)

    def journal(self, table: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Operation, phase and details of every journal row, oldest first."""
        return [
            (details["operation"], phase, details)
            for phase, details in self.mirror.database.rows(
                "SELECT phase, details FROM modak.op_log WHERE table_id = %s"
                " ORDER BY (details ->> 'began_at')::timestamptz",
                (self.table_id(table),),
            )
        ]

    def read(self, table: str, suffix: str = "") -> list[Row]:
        """Every row, read by Spark; `suffix` such as `VERSION AS OF 'tag'`."""
        return normalised(read_spark(self.session, f"{table} {suffix}"))

    def assert_equal(self, table: str) -> None:
        """Heap and lake hold the same rows, as DuckDB and Spark read them. Nobody may write meanwhile."""
        self.mirror.assert_equal(table)
        self.assert_equal_by_spark(table)

    def assert_equal_by_spark(self, table: str) -> None:
        """The same, with Spark alone: DuckDB compares rows x deletes if many equality deletes are pending."""
        assert_same(self.mirror.heap(table), self.read(table), f"{table} by Spark")
        self.mirror.assert_sound()

    def files(self, table: str) -> set[Path]:
        """Every file below the table's location."""
        root = Path(self.lake_table(table).location.removeprefix("file://"))
        return {path for path in root.rglob("*") if path.is_file()}


@contextmanager
def maintaining(maintained: Maintained, tables: Sequence[str]) -> Iterator[list[PassResult]]:
    """Makes one requested pass after the other over these tables, in a thread, within the block. Yields the results,
    which grow. An error that ends the thread is raised at the end of the block."""
    passes: list[PassResult] = []

    def work(stop: threading.Event) -> None:
        while not stop.is_set():
            for table in tables:
                if stop.wait(0.5):
                    return
                passes.append(maintained.maintain(table))

    with in_thread(work, "maintainer", 180):
        yield passes


def age(paths: Iterator[Path] | set[Path] | list[Path], hours: float) -> None:
    """Makes files that many hours old."""
    moment = time.time() - hours * 3600
    for path in paths:
        # A pump that runs meanwhile removes its own.
        with suppress(FileNotFoundError):
            os.utime(path, (moment, moment))


_GATE = """
CREATE SCHEMA gate;
CREATE SEQUENCE gate.commits;
CREATE FUNCTION gate.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_query() NOT LIKE 'UPDATE modak.%' AND nextval('gate.commits') = 1 THEN
    PERFORM pg_advisory_lock_shared(4711), pg_advisory_unlock_shared(4711);
  END IF;
  RETURN NULL; END $$;
CREATE TRIGGER gate BEFORE UPDATE ON modak.iceberg_tables FOR EACH STATEMENT EXECUTE FUNCTION gate.wait();
"""
"""Iceberg's JDBC catalog names the table without its schema; our own publishes name it with its schema."""

_AT_GATE = (
    "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE 'UPDATE%'"
    " AND datname = current_database()"
)


class CommitGate:
    """Holds up a commit of Spark, and of no other engine, at the last moment before it moves the table's pointer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.session() as connection:
            connection.execute(_GATE)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Spark's next attempt to commit waits until the block ends; later ones pass."""
        with self._database.session() as connection:
            connection.execute("ALTER SEQUENCE gate.commits RESTART")
            connection.execute("SELECT pg_advisory_lock(4711)")
            yield

    def await_commit(self) -> None:
        """Returns once a commit of Spark waits."""
        await_true(lambda: self._database.rows(_AT_GATE), 90, "Spark commits")


_AT_SLOT = (
    "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%mirror_slots%FOR UPDATE%'"
    " AND datname = current_database()"
)


@contextmanager
def no_publishes(mirror: Mirror) -> Iterator[Callable[[], None]]:
    """Holds up publishes, and what maintenance lands, during the block. Yields a function that returns once one of them
    waits."""
    with mirror.database.session(autocommit=False) as connection:
        connection.execute(queries("publish")["lock_slot"], {"slot": mirror.settings.slot})
        yield lambda: await_true(lambda: mirror.database.rows(_AT_SLOT), 90, "a commit waits for the slot's row")


def prepare(database: Database, warehouse: str, spark: SparkSession, runner: TaskRunner | None = None) -> Maintained:
    """A mirror of table t, 3,000 rows, live, with a small target file size."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v text)",
        "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 4) FROM generate_series(1, 3000) g",
    )
    mirror = Mirror.create(database, warehouse, runner or ThreadTaskRunner(), **NO_UPKEEP)
    mirror.register("t")
    mirror.catch_up()
    maintained = Maintained(mirror, spark)
    maintained.policy(T, rewrite_target_bytes=MIB)
    return maintained


NO_UPKEEP: dict[str, Any] = {"index_memory": 0, "convert_age": 3600, "merge_bytes": 0}
"""Settings of a pump that leaves all upkeep to maintenance, so that the backlog is known."""

UPKEEP: dict[str, Any] = {"index_memory": 1 << 30, "convert_age": 0.2, "merge_bytes": 1 << 20}
"""Settings of a pump that does most of the upkeep itself, at once."""


def write(mirror: Mirror, number: int) -> None:
    """A transaction of inserts, updates, key changes and deletes; every third one only deletes."""
    k = {"k": number, "base": 100_000 + number * 100}
    with mirror.database.session(autocommit=False) as connection:
        run = connection.execute
        if number % 3:
            run("INSERT INTO t SELECT %(base)s + g, 0, 'new' FROM generate_series(1, 20) g", k)
            run("UPDATE t SET n = n + 1 WHERE id %% 97 = %(k)s %% 97", k)
            run("UPDATE t SET id = id + 50000 WHERE id = %(base)s + 3", k)
        run("DELETE FROM t WHERE id %% 211 = %(k)s %% 211", k)
        connection.commit()


def write_and_publish(mirror: Mirror, numbers: range) -> None:
    """That many transactions, each of them a commit to the lake."""
    with mirror.pumping():
        for number in numbers:
            write(mirror, number)
            mirror.await_frontier()
