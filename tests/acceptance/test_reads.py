"""Readers in all modes during writes, publishes, retention and folds: every read is a state that the database had.

The table with retention has a model, a plain table that gets the same changes in the same transactions. A seam read is
compared with the model in the snapshot in which it was read. Plain tables are read in a way that shows a partial state:
amounts move between them, and their sum stays. A second table with retention gets a stream of inserts, and late writes
to partitions that are leaving the heap (tests/support/late_writes.py). The pump is killed at random steps, and
maintenance compacts and expires whatever it may, without a grace period.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import mirror_pump.spark
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.ops.reads.query import Query, open_query, plain_reads
from mirror_pump.ops.reads.read_scope import ReadScope
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.reads.views import create_view, fill_tables
from mirror_pump.ops.retain.retention import resume
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Row, assert_same, await_true, normalised
from tests.support.crashing_pump import dying_pump
from tests.support.events_table import COLUMNS, EventsTable, RetentionTables
from tests.support.late_writes import STREAM, LateStream
from tests.support.maintenance import Maintained, maintaining
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

_QUOTED = ", ".join(f'"{name}"' for name in COLUMNS.split(", "))
"""AT is a reserved word in DuckDB."""
_ACCOUNTS = 300
_BALANCES = (
    f"SELECT (SELECT sum(n) FROM debit) + (SELECT sum(n) FROM credit), (SELECT count(*) FROM debit) = {_ACCOUNTS}"
)


@contextmanager
def _at(mirror: Mirror, snapshot: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees what an exported snapshot sees."""
    with mirror.database.session(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        yield connection


def _model_at(mirror: Mirror, snapshot: str) -> list[Row]:
    """The model as of an exported snapshot."""
    with _at(mirror, snapshot) as connection:
        return normalised(connection.execute(f"SELECT {COLUMNS} FROM model".encode()).fetchall())


def _cut(mirror: Mirror) -> int:
    """The cut-line of public.events."""
    return int(
        mirror.database.rows(
            "SELECT tier_key_hi FROM modak.cutline WHERE table_id = 'public.events'::regclass::oid::bigint"
        )[0][0]
    )


@contextmanager
def _seam_in_duckdb(mirror: Mirror, statement: str, table: str = "public.events") -> Iterator[tuple[list[Row], str]]:
    """The rows that the statement, which names the table, finds; and the snapshot in which it was read."""
    ids = [TableId(mirror.database.rows("SELECT %s::regclass::oid::bigint", (table,))[0][0])]
    storage = StorageOptions(mirror.settings.storage_properties, fsync=False)
    with ExitStack() as stack:
        (read,) = plain_reads(ReadScope(mirror.settings, storage, stack, print), Query(statement), ids)
        duckdb = stack.enter_context(open_duckdb())
        made = create_view(duckdb, read)
        duckdb.execute(f"CREATE SCHEMA public; CREATE VIEW {table} AS FROM {made}")
        fill_tables(duckdb, mirror.settings.require_dsn(), [read], statement, 2, StorageOptions())
        assert read.heap is not None
        yield normalised(duckdb.execute(statement).fetchall()), read.heap.snapshot


def _transfer(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    amount, debit, credit = chance.randrange(-9, 10), chance.randrange(_ACCOUNTS), chance.randrange(_ACCOUNTS)
    connection.execute("UPDATE debit SET n = n + %s WHERE abs(id) = %s", (amount, debit))
    connection.execute("UPDATE credit SET n = n - %s WHERE id = %s", (amount, credit))
    if chance.randrange(4) == 0:
        # The account's number changes, across the split and back.
        connection.execute("UPDATE debit SET id = -id WHERE abs(id) = %s", (debit,))


def _kinds(mirror: Mirror, spark: SparkSession, max_wait: float) -> dict[str, Callable[[], object]]:
    """Kinds of reads, each of which fails unless it finds a state that the database had."""

    def duckdb() -> None:
        with _seam_in_duckdb(mirror, f"SELECT {_QUOTED} FROM public.events") as (found, snapshot):
            assert_same(_model_at(mirror, snapshot), found, f"DuckDB, the cut-line {_cut(mirror)}")

    def columns() -> None:
        query = "SELECT n, count(*) FROM public.events WHERE v <> 'x' GROUP BY n"
        with _seam_in_duckdb(mirror, query) as (found, snapshot):
            wanted: dict[int, int] = {}
            for row in _model_at(mirror, snapshot):
                wanted[row[2]] = wanted.get(row[2], 0) + 1
            assert_same(normalised(list(wanted.items())), found, "some columns by DuckDB")

    def by_spark() -> None:
        with mirror_pump.spark.read(spark, "public.events", settings=mirror.settings) as frame:
            assert frame.read.heap is not None
            found = normalised([tuple(row) for row in frame.select(*COLUMNS.split(", ")).collect()])
            assert_same(_model_at(mirror, frame.read.heap.snapshot), found, f"Spark, the cut-line {_cut(mirror)}")

    def balances(mode: ReadMode) -> None:
        notices: list[str] = []
        with open_query(mirror.settings, Query(_BALANCES, mode, max_wait=max_wait), notices.append) as duckdb:
            assert duckdb.execute(_BALANCES).fetchall() == [(0, True)], mode
        assert notices == []

    modes = {str(mode): partial(balances, mode) for mode in (ReadMode.HYBRID, ReadMode.HEAP, ReadMode.LAKE)}
    return {"duckdb": duckdb, "columns": columns, "spark": by_spark, **modes}


def _stream_kinds(
    mirror: Mirror, stream: LateStream, spark: SparkSession, connection: DuckDBPyConnection
) -> dict[str, Callable[[], object]]:
    """The same for the stream with late writes: by the product, and by the protocol's statements."""

    def by_duckdb() -> None:
        query = f"{stream.digest} FROM {STREAM} GROUP BY 1"
        with _seam_in_duckdb(mirror, query, STREAM) as (found, snapshot), _at(mirror, snapshot) as model:
            assert_same(stream.model(model), found, "the stream by DuckDB")

    def by_spark() -> None:
        with mirror_pump.spark.read(spark, STREAM, settings=mirror.settings) as frame:
            frame.createOrReplaceTempView("stream_read")
            digest = f"{stream.digest} FROM stream_read GROUP BY 1".replace('"', "`")
            found = normalised([tuple(row) for row in frame.sparkSession.sql(digest).collect()])
            assert frame.read.heap is not None
            with _at(mirror, frame.read.heap.snapshot) as model:
                assert_same(stream.model(model), found, "the stream by Spark")

    return {
        "stream": by_duckdb,
        "stream-spark": by_spark,
        "stream-unpinned": lambda: stream.read(connection, pinned_for=None),
        "stream-pinned": lambda: stream.read(connection, pinned_for=5),
    }


def _read_for(
    kinds: Mapping[str, Callable[[], object]], seconds: float, chance: random.Random, between: Callable[[], object]
) -> dict[str, int]:
    """Makes reads of every kind for so long, and at least one of each. Returns how many of each. `between` is called
    after each."""
    done = dict.fromkeys(kinds, 0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not all(done.values()):
        kind = min(done, key=lambda name: (done[name] > 0, chance.random()))
        kinds[kind]()
        done[kind] += 1
        between()
    return done


def _drawn() -> random.Random:
    seed = int(os.environ.get("READS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"READS_SEED={seed}")
    return random.Random(seed)


def _create_accounts(database: Database) -> None:
    database.execute(
        "CREATE TABLE debit (id int PRIMARY KEY, n bigint)", "CREATE TABLE credit (LIKE debit INCLUDING ALL)"
    )
    for name in ("debit", "credit"):
        with database.session() as connection:
            connection.execute(f"INSERT INTO {name} SELECT g, 0 FROM generate_series(0, {_ACCOUNTS - 1}) g".encode())


def _run(retention_tables: RetentionTables, database: Database, spark: SparkSession, seconds: float) -> None:
    chance = _drawn()
    events = retention_tables.automatic(lag="150")
    mirror = events.mirror
    _create_accounts(database)
    mirror.register("public.debit", "public.credit")
    with mirror.pumping():
        mirror.await_live("public.events", "public.debit", "public.credit")
        with (
            writing(database, events.write, chance.randrange(2**32)),
            writing(database, events.write, chance.randrange(2**32)),
            writing(database, _transfer, chance.randrange(2**32)),
        ):
            events.await_state(p0="dropped")
            done = _read_for(_kinds(mirror, spark, 30), seconds, chance, lambda: None)
    print(f"reads {done}, the cut-line {_cut(mirror)}, partitions {events.states()}")
    assert _cut(mirror) >= WIDTH
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []
    mirror.assert_sound()


@dataclass(frozen=True)
class ReadLoad:
    """How hard the test is."""

    seconds: float
    """Seconds of reads."""
    width: int
    """Tier keys per partition of the stream."""
    inserts: int
    """Inserts per second."""
    late: int
    """Late writes per second."""
    lives: tuple[float, float]
    """Longest time in seconds until a pump is killed: drawn from this range."""


def _run_beside_everything(
    retention_tables: RetentionTables, database: Database, spark: SparkSession, load: ReadLoad
) -> None:
    chance = _drawn()
    seeds = [chance.randrange(2**32) for _ in range(5)]
    events = retention_tables.automatic(lag="150", fold_age=0.5, retention_interval=0.2)
    mirror = events.mirror
    _create_accounts(database)
    stream = LateStream.create(mirror, load.width)
    mirror.register("public.debit", "public.credit")
    tables = ("public.events", "public.debit", "public.credit", STREAM)
    maintained = Maintained(mirror, spark)
    for table in tables:
        maintained.policy(table, snapshot_retention_hours=0, snapshot_min_retained=1)
    with duckdb_connection() as duckdb:
        with dying_pump(mirror, seeds[0], *load.lives) as killed:
            mirror.await_live(*tables, seconds=180)
            with (
                writing(database, events.write, seeds[1]),
                writing(database, events.write, seeds[2]),
                writing(database, _transfer, seeds[3]),
                stream.writing(seeds[4], load.inserts, load.late),
                maintaining(maintained, tables) as passes,
            ):
                kinds = {**_kinds(mirror, spark, 120), **_stream_kinds(mirror, stream, spark, duckdb)}
                deadline = time.monotonic() + load.seconds
                done = _read_for(kinds, load.seconds, chance, _growing(events))
                await_true(lambda: killed.total() >= 2 and passes, 120, "two kills and a pass of maintenance")
                overdue = time.monotonic() - deadline
        print(
            f"reads {done} in {load.seconds + overdue:.0f} s; killed {dict(killed)}; the cut-line {_cut(mirror)};"
            f" stream: {stream.inserted / stream.seconds:.0f} inserts/s, {stream.late / stream.seconds:.0f} late/s,"
            f" partitions {stream.state_counts()}; {len(passes)} passes,"
            f" errors {[result.errors for result in passes if result.errors]}"
        )
        assert any(result.done for result in passes), passes
        with mirror.pumping():
            mirror.await_frontier(seconds=120)
            resume(mirror.settings, ())
            await_true(
                lambda: stream.state_counts().get("dropped", 0) >= 2, 120, "partitions of the stream are dropped"
            )
            for read in kinds.values():
                read()
    assert _cut(mirror) >= WIDTH
    stopped = mirror.database.rows("SELECT retention_stopped FROM modak.status WHERE retention_stopped IS NOT NULL")
    assert stopped == [], "a proof failed"
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []
    mirror.assert_sound()


def _growing(events: EventsTable) -> Callable[[], None]:
    """Makes another partition of public.events due with every fifth call."""
    calls = count(1)

    def grow() -> None:
        if next(calls) % 5 == 0:
            events.grow()

    return grow


@pytest.mark.slow
def test_every_read_is_a_state_that_the_database_had(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    _run(retention_tables, database, spark, 1)


@pytest.mark.soak  # The kills take minutes on a busy machine.
def test_every_read_is_exact_beside_kills_maintenance_and_late_writes(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    _run_beside_everything(retention_tables, database, spark, ReadLoad(10, 1500, 500, 40, (4, 9)))


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_every_read_is_a_state_that_the_database_had_for_long(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    _run(retention_tables, database, spark, float(os.environ.get("READS_SECONDS", "900")))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_read_is_exact_beside_kills_maintenance_and_late_writes_for_long(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    seconds = float(os.environ.get("READS_SECONDS", "900"))
    _run_beside_everything(retention_tables, database, spark, ReadLoad(seconds, 50_000, 5000, 200, (5, 25)))
