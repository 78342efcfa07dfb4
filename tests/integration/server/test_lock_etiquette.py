"""Beside a long transaction on a user's table, no other session waits behind us for longer than one try of a lock.

A request for a lock that is not granted has all later ones queue behind it, as long as it waits: an application stands
still that would not have met the long transaction at all. So every request of ours ends soon, and is made again later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.verify.verification import verify
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.resyncs import resynced
from tests.support.retention_table import at_once

pytestmark = pytest.mark.further

_LONG = 5.0
"""Seconds that the long transaction takes. Behind a request that waits for it, a session would wait as long."""
_TRY = 0.3
"""Seconds that one try for a lock may take: `lock_timeout`."""
_MOST = 2.5
"""Seconds that an application may wait: several tries, and a slow machine."""


@contextmanager
def _longest_waits(database: Database, statements: tuple[str, ...]) -> Iterator[dict[str, float]]:
    """Runs the statements again and again, each in a session of its own. The longest time that each of them took."""
    longest = dict.fromkeys(statements, 0.0)
    stop = threading.Event()

    def work(statement: str) -> None:
        with database.session() as connection:
            while not stop.is_set():
                began = time.monotonic()
                connection.execute(statement.encode())
                longest[statement] = max(longest[statement], time.monotonic() - began)
                stop.wait(0.02)

    with ThreadPoolExecutor(len(statements)) as threads:
        running = [threads.submit(work, statement) for statement in statements]
        try:
            yield longest
        finally:
            stop.set()
        for future in running:
            future.result()


def _assert_polite(database: Database, act: Callable[[], object], long: str, statements: tuple[str, ...]) -> None:
    """Acts while a transaction is open that has run the statement `long`, and afterwards."""
    with ThreadPoolExecutor(1) as thread:
        with database.connect(autocommit=False) as connection:
            connection.execute(long.encode())
            with _longest_waits(database, statements) as longest:
                acting = thread.submit(act)
                time.sleep(_LONG)
            connection.commit()
        acting.result(90)
    assert all(0 < wait < _MOST for wait in longest.values()), longest


_WRITES = "UPDATE t SET n = n + 1 WHERE id = 1"
_READS = "SELECT count(*) FROM t"
_DEFINES = "SELECT pg_get_indexdef(oid) FROM pg_class WHERE relname = 't_pkey'"
_LONG_WRITER = "UPDATE t SET n = -1 WHERE id = 2"
_LONG_READER = "SELECT count(*) FROM t"


def _heap_rows(mirror: Mirror) -> None:
    query = Query("SELECT count(*) FROM t", ReadMode.HEAP)
    with open_query(mirror.settings, query, lambda _: None) as duckdb:
        assert duckdb.execute(query.statement).fetchall() == [(2000,)]


_COMMANDS: dict[str, Callable[[Mirror], object]] = {
    "register": lambda mirror: mirror.register("t"),
    "unregister": lambda mirror: mirror.unregister("public.t"),
    "pause": lambda mirror: pause(mirror.settings, "t"),
    "resume": lambda mirror: resume(mirror.settings, "t"),
    "resync": lambda mirror: resynced(mirror, "t"),
    "verify": lambda mirror: verify(mirror.settings, ["t"]),
    "read": _heap_rows,
}
"""What runs on a user's table, beside the pump, with its copies and its looks at the schema."""


@pytest.mark.parametrize("long", [_LONG_WRITER, _LONG_READER], ids=["a long writer", "a long reader"])
@pytest.mark.parametrize("command", _COMMANDS)
def test_no_application_waits_behind_a_command(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, command: str, long: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 2000) g"
    )
    mirror = Mirror.create(database, warehouse, tasks, lock_timeout=_TRY, copy_chunk_bytes=8192)
    if command != "register":
        mirror.register("t")
        mirror.catch_up()
    if command == "resume":
        pause(mirror.settings, "t")
    with mirror.pumping():
        _assert_polite(database, lambda: _COMMANDS[command](mirror), long, (_WRITES, _READS, _DEFINES))
        if command not in ("unregister", "pause"):
            mirror.await_live("public.t")
            mirror.await_frontier()
            mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.parametrize(
    "long", ["UPDATE p0 SET n = 7 WHERE id = 1", "SELECT count(*) FROM p0"], ids=["writer", "reader"]
)
def test_no_application_waits_behind_a_partition_that_leaves_the_heap(
    retention_tables: RetentionTables, database: Database, tasks: ThreadTaskRunner, long: str
) -> None:
    """The partition stays as long as the transaction is open."""
    events = retention_tables.automatic(partitions=4, rows=20, runner=tasks, lag=None)
    mirror = events.mirror
    with mirror.pumping():

        def shed() -> None:
            mirror.register("public.events", retention=at_once("100"))
            mirror.await_live("public.events")

        statements = ("SELECT count(*) FROM events", "UPDATE events SET n = n + 1 WHERE at >= 300")
        _assert_polite(database, shed, long, statements)
        await_true(lambda: not database.rows("SELECT FROM pg_class WHERE relname = 'p0'"), 60, "p0 has left the heap")
    mirror.assert_sound()
