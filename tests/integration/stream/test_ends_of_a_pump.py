"""What must not end a pump: refusals whose reason passes, and sessions that are lost at an awkward moment. A bug ends
it, and leaves its name in the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.engine.ingest.segment_tasks import apply_segment
from mirror_pump.errors import ConnectionLost
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.session.services import SessionServices, start_services
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables

_WAITING: LiteralString = (
    "SELECT pid, query_start, query FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'mirror-pump' AND wait_event_type = 'Lock'"
)


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """A mirror with the table t."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(2), reconnect_backoff_max=0.1)
    mirror.register("t")
    return mirror


@contextmanager
def _catalog_locked(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """Nobody can read the mirrored tables during the block, as while VACUUM FULL rewrites the catalog. Yields a
    connection in autocommit mode."""
    with database.session(autocommit=False) as locking, database.session() as connection:
        locking.execute("LOCK TABLE modak.mirror_tables IN ACCESS EXCLUSIVE MODE")
        yield connection


def _assert_goes_on(mirror: Mirror, pump: RunningPump) -> None:
    """The pump mirrors what is written from now on."""
    assert pump.error is None
    mirror.database.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
    mirror.await_frontier()
    mirror.assert_equal("public.t")


def test_a_look_at_partitions_that_is_refused_the_catalog_is_repeated(retention_tables: RetentionTables) -> None:
    """It waits for a lock for LOCK_TIMEOUT only."""
    events = retention_tables.automatic(partitions=3, rows=10, lag="1000")
    with events.mirror.pumping() as pump:
        events.mirror.await_live("public.events")
        with _catalog_locked(events.database) as connection:
            looks = set[tuple[int, datetime]]()

            def looked_again() -> bool:
                rows = connection.execute(_WAITING).fetchall()
                looks.update((pid, begin) for pid, begin, query in rows if "m.retention IS NOT NULL" in query)
                return len(looks) > 1 or pump.error is not None

            await_true(looked_again, 30, "the look is repeated")
        assert pump.error is None
        events.mirror.await_frontier()


def test_statements_that_are_cancelled_are_repeated(mirror: Mirror) -> None:
    with mirror.pumping() as pump:
        mirror.await_live("public.t")
        with _catalog_locked(mirror.database) as connection:
            cancelled = set[int]()

            def noticed() -> bool:
                # Some threads look again by themselves; the loop's session does not.
                for pid, *_ in connection.execute(_WAITING).fetchall():
                    connection.execute("SELECT pg_cancel_backend(%s)", (pid,))
                    cancelled.add(pid)
                return pump.steps.count(Step.RETRYING) > 0 or pump.error is not None

            await_true(noticed, 30, "the pump has noticed")
            assert cancelled
        _assert_goes_on(mirror, pump)


def test_a_stream_that_is_cancelled_is_opened_again(mirror: Mirror) -> None:
    with mirror.pumping() as pump:
        mirror.await_live("public.t")
        streams: LiteralString = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        slot = (mirror.settings.slot,)
        ((walsender,),) = mirror.database.rows(streams, slot)
        mirror.database.rows("SELECT pg_cancel_backend(%s)", (walsender,))
        await_true(lambda: pump.steps.count(Step.RETRYING) or pump.error, 30, "the pump has noticed")
        _assert_goes_on(mirror, pump)
        assert mirror.database.rows(streams, slot) != [(walsender,)]


def test_a_session_whose_connection_is_lost_right_after_its_start_lets_the_next_one_lead(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[int]()

    def start_and_lose(*arguments: Any) -> SessionServices:
        services = start_services(*arguments)
        if not lost:
            lost.append(services.connection.info.backend_pid)
            mirror.database.rows("SELECT pg_terminate_backend(%s, 10000)", (lost[0],))
        return services

    monkeypatch.setattr("mirror_pump.pipeline.session.session.start_services", start_and_lose)
    with mirror.pumping() as pump:
        mirror.await_live("public.t", seconds=30)
        _assert_goes_on(mirror, pump)
    assert lost


def test_a_chunk_whose_end_cannot_be_taken_is_copied_again(mirror: Mirror) -> None:
    def lose(step: Step, _: dict[str, object]) -> None:
        if step is Step.CHUNK_COPIED and steps.count(step) == 1:
            raise ConnectionLost("planted")

    steps = Steps(lose)
    with mirror.pumping(steps) as pump:
        mirror.await_live("public.t", seconds=30)
        _assert_goes_on(mirror, pump)
    assert steps.count(Step.CHUNK_COPIED) == 2


def test_a_bug_ends_the_pump_and_leaves_its_name(mirror: Mirror) -> None:
    def stumble(step: Step, _: dict[str, object]) -> None:
        if step is Step.PUBLISHED:
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        mirror.start(Steps(stumble)).join()
    noted = mirror.database.rows("SELECT last_error ->> 'error', last_error ->> 'retry_in' FROM modak.mirror_slots")
    assert noted == [("the pump has a bug: KeyError: 'planted'", None)]


class _TimesOut(ThreadTaskRunner):
    """Holds segments back, and fails them with a TimeoutError when it is told to."""

    def __init__(self) -> None:
        super().__init__(2)
        self._held: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], task: Any) -> Future[Any]:
        if function is not apply_segment:
            return super().submit(function, task)
        self._held.append(Future())
        return self._held[-1]

    def time_out(self) -> None:
        for future in self._held:
            future.set_exception(TimeoutError("planted"))


def test_a_task_that_fails_with_a_time_out_is_not_waited_for(mirror: Mirror) -> None:
    """The loop waits for tasks with time-outs of its own."""
    mirror.catch_up()
    runner = _TimesOut()

    def fail_soon(step: Step, _: dict[str, object]) -> None:
        if step is Step.RECEIVED:
            threading.Timer(0.1, runner.time_out).start()

    running = Mirror(mirror.database, mirror.settings, runner).start(Steps(fail_soon))
    mirror.database.execute("INSERT INTO t VALUES (-1)")
    with pytest.raises(TimeoutError, match="planted"):
        running.join(60)
