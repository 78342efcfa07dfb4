"""Initial copies of a busy table while a pump runs."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.pipeline import change_rows, in_thread, writing
from tests.support.repacking import repack

ROWS = 200_000 if os.environ.get("SOAK") else 20_000


@pytest.fixture
def busy(database: Database) -> Database:
    """A table of ROWS rows, every hundredth with a value that is stored out of line, and a small table."""
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "CREATE TABLE u (id bigint PRIMARY KEY, n int, v text, big text)",
        "INSERT INTO u SELECT g, 0, 'u', NULL FROM generate_series(1, 100) g",
    )
    with database.connect() as connection:
        connection.execute(
            "INSERT INTO t SELECT g, g %% 1000, repeat('v', 40), CASE WHEN g %% 100 = 0 THEN repeat(md5(g::text), 100)"
            " END FROM generate_series(1, %s) g",
            (ROWS,),
        )
    return database


@pytest.mark.parametrize(
    ("event", "runs"),
    [
        ("", "tasks"),
        pytest.param("", "runner", marks=pytest.mark.soak),
        pytest.param("TRUNCATE t", "tasks", marks=pytest.mark.further),
        pytest.param("VACUUM FULL t", "tasks", marks=pytest.mark.further),
        pytest.param(repack("t"), "tasks", marks=pytest.mark.further, id="repack"),
    ],
)
def test_a_table_is_copied_while_it_changes(
    busy: Database, warehouse: str, request: pytest.FixtureRequest, event: str, runs: str
) -> None:
    """By Spark's workers. Where the copy begins again, by threads."""
    runner: TaskRunner = request.getfixturevalue(runs)
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    mirror = Mirror.create(
        busy, warehouse, runner, limits=paced(0.3), copy_chunk_bytes=min(1 << 18, 6 * ROWS), copy_workers=2
    )
    steps = Steps()
    with mirror.pumping(steps), writing(busy, change_rows("t", ROWS), seed) as written:
        mirror.register("u")
        mirror.await_live("public.u")
        before = written()
        mirror.register("t")
        await_true(lambda: steps.count(Step.CHUNK_COPIED) >= 5, 60, "five chunks are copied")
        assert mirror.state("public.t") == "copying"
        if event:
            with busy.connect() as connection:
                connection.execute(event.encode())
        copied_frontier = mirror.frontier()
        busy.execute("UPDATE u SET n = n + 1")
        mirror.await_frontier(copied_frontier + 1)
        mirror.await_live("public.t", seconds=120)
        after = written()
        assert after > before + 10, "rows changed during the copy"
        await_true(lambda: written() > after + 20, 60, "changes go on in the live table")
    with mirror.pumping():
        mirror.await_frontier()
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()
    planned = steps.details(Step.COPY_PLANNED, "table").count("public.t")
    assert planned >= 2 if event else planned == 1, "the copy starts again exactly if the heap was rewritten"


def test_what_was_copied_before_a_truncate_is_not_published_with_it(database: Database, warehouse: str) -> None:
    """Finished chunks wait while the loop is busy, and reach it in the same publish as the TRUNCATE."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(1, 1000) g",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    busy, go_on = threading.Event(), threading.Event()
    armed = False

    def block(step: Step, _details: dict[str, object]) -> None:
        nonlocal armed
        if step is Step.WRITTEN and armed:
            armed = False
            busy.set()
            assert go_on.wait(60)

    steps = Steps(block)
    gate = GatedCopies(ThreadTaskRunner())
    gate.hold()
    # A batch that is not full would wait for the one before.
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=1 << 20, batch_bytes=1)
    with mirror.pumping(steps) as running:
        mirror.register("u")
        mirror.await_live("public.u")
        mirror.register("t")
        await_true(lambda: "public.t" in steps.details(Step.COPY_PLANNED, "table"), 30, "the copy is planned")
        armed = True
        database.execute("INSERT INTO u VALUES (1)")
        assert busy.wait(60), "a batch is being applied"
        gate.let_go()
        await_true(lambda: steps.count(Step.CHUNK_COPIED), 30, "the chunk is copied")
        waiting = running.pump._inbox.qsize()
        database.execute("TRUNCATE t", "INSERT INTO t VALUES (1, 'after')")
        await_true(lambda: running.pump._inbox.qsize() > waiting, 30, "the TRUNCATE waits behind the chunk")
        go_on.set()
        mirror.await_live("public.t")
        mirror.await_frontier()
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


@pytest.mark.parametrize(
    ("together", "reused"),
    [
        pytest.param(True, False, marks=pytest.mark.further),
        (True, True),
        (False, True),
        pytest.param(False, False, marks=pytest.mark.further),
    ],
)
def test_a_large_value_is_never_that_of_another_row(
    database: Database, warehouse: str, together: bool, reused: bool
) -> None:
    """Before its row is copied, an update leaves the value out of its stream; another row had the same key before.

    Row 1 moves to key 2 and on to key 3, and neither change sends its large value. When the pump processes the first
    change, neither lake nor heap has the value under key 1 or 2. The lake has a deleted row 2, whose value is not the
    right one. Nor is that of the row that has key 2 by now (`reused`).
    """
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 0, repeat('right', 1000))",
    )
    gate = GatedCopies(ThreadTaskRunner())
    gate.hold()
    batch: dict[str, Any] = (
        {"batch_bytes": 1 << 20, "limits": paced(0.5)} if together else {"batch_bytes": 1, "limits": paced(0)}
    )
    mirror = Mirror.create(database, warehouse, gate, segment_bytes=1, **batch)
    gone = ("INSERT INTO t VALUES (2, 0, repeat('wrong', 1000))", "DELETE FROM t WHERE id = 2")
    with mirror.pumping() as running:
        mirror.register("t")
        await_true(lambda: running.steps.count(Step.COPY_PLANNED), 30, "the copy is planned")
        if not together:
            database.execute(*gone)
        mirror.await_frontier()
    if together:
        database.execute(*gone)
    database.execute("UPDATE t SET id = 2", "UPDATE t SET n = 1", "UPDATE t SET id = 3")
    if reused:
        database.execute("INSERT INTO t VALUES (2, 0, repeat('other', 1000))")
    with mirror.pumping():
        mirror.await_frontier()
        gate.let_go()
        mirror.await_live("public.t")
        mirror.await_frontier()
    mirror.assert_equal("public.t")


@contextmanager
def unconfirmed_commits(database: Database) -> Iterator[Callable[[], None]]:
    """In the block, commits wait for a synchronous standby that does not exist: they are in the WAL, but no snapshot
    sees them. Yields a function that ends the wait."""

    def commit(stop: threading.Event) -> None:
        """Commits repeatedly, until the server has applied the setting and the last commit waits."""
        with database.connect() as connection:
            while not stop.wait(0.01):
                connection.execute("SELECT pg_logical_emit_message(true, 'probe', '')")

    with database.connect() as connection, in_thread(commit, "probe"):

        def confirm() -> None:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")

        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        try:
            connection.execute("SELECT pg_reload_conf()")
            waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'probe'"
            await_true(lambda: database.rows(waits), 30, "commits wait for a standby")
            yield confirm
        finally:
            confirm()


def test_a_key_that_moves_during_the_copy_has_its_large_value_before_anybody_sees_it(
    database: Database, warehouse: str
) -> None:
    """The stream delivers a commit before snapshots show it, and neither change sends the large value.

    Row 1 moves to a key that no snapshot shows, row 3 to a key under which all snapshots show row 2, which is deleted.
    """
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT id, 0, repeat(v, 1000) FROM (VALUES (1, 'moved'), (2, 'wrong'), (3, 'right')) x (id, v)",
    )
    gate = GatedCopies(ThreadTaskRunner())
    gate.hold()
    mirror = Mirror.create(database, warehouse, gate, limits=paced(0))

    def move(_: threading.Event) -> None:
        with database.connect() as connection, connection.transaction():
            connection.execute("UPDATE t SET id = 10 WHERE id = 1")
            connection.execute("DELETE FROM t WHERE id = 2")
            connection.execute("UPDATE t SET id = 2 WHERE id = 3")

    with mirror.pumping() as running:
        mirror.register("t")
        await_true(lambda: running.steps.count(Step.COPY_PLANNED), 30, "the copy is planned")
        mirror.await_frontier()
        written = running.steps.count(Step.WRITTEN)

        def looked() -> bool:
            """The pump has read the heap, or is asking whether it may."""
            asking = database.rows(
                "SELECT FROM pg_stat_activity WHERE query ~ 'pg_current_snapshot' AND pid <> pg_backend_pid()"
                " AND datname = current_database()"
            )
            return bool(asking) or running.steps.count(Step.WRITTEN) > written

        with unconfirmed_commits(database) as confirm, in_thread(move, "session"):
            await_true(looked, 30, "the rows that moved are looked for")
            confirm()
        gate.let_go()
        mirror.await_live("public.t")
        mirror.await_frontier()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.further
def test_a_table_that_is_being_altered_holds_up_no_other_copy(database: Database, warehouse: str) -> None:
    """Its chunks are read later, each once. Those of the other table need the same workers."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, repeat('t', 100) FROM generate_series(1, 1000) g",
        "INSERT INTO u SELECT g, 'u' FROM generate_series(1, 100) g",
    )
    gate = GatedCopies(ThreadTaskRunner())
    mirror = Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192, copy_workers=1)
    gate.hold()
    with mirror.pumping(), database.connect() as altering:
        mirror.register("t")
        await_true(lambda: gate.waiting, 30, "t is being copied")
        with altering.transaction():
            altering.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            mirror.register("u")
            gate.let_go()
            mirror.await_live("public.u", seconds=30)
            assert mirror.state("public.t") == "copying"
        mirror.await_live("public.t", seconds=30)
        mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


@pytest.mark.further
def test_copies_read_no_faster_than_they_may(busy: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """The rows have more than 40 bytes each. All of them but those of the last chunks are paid for when the copy ends.
    A pump that is told to stop meanwhile does not wait for the budget."""
    rate, chunk_bytes = 400_000, 1 << 17
    mirror = Mirror.create(busy, warehouse, tasks, copy_rate_bytes=rate, copy_workers=1, copy_chunk_bytes=chunk_bytes)
    begin = time.monotonic()
    mirror.register("t")
    mirror.catch_up()
    assert time.monotonic() - begin >= (40 * ROWS - 2 * chunk_bytes) / rate
    mirror.assert_equal("public.t")

    slow = mirror.with_options(copy_rate_bytes=1)
    mirror.unregister("public.t", drop_lake=True)
    chunks = Steps()
    with slow.pumping(chunks) as pump:
        slow.register("t")
        await_true(lambda: chunks.count(Step.CHUNK_COPIED), 60, "the first chunk, which waits for nothing")
        pump.stop()
    assert chunks.count(Step.CHUNK_COPIED) == 1
    mirror.catch_up()
    mirror.assert_equal("public.t")
