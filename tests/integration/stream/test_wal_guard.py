"""The WAL guard: what a pump does before its slot is lost. Real slots keep real WAL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mirror_pump.errors import SourceError, StorageFull
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.wal_limit import wal_limit

Task = TypeVar("Task")
Result = TypeVar("Result")

LIMITS = InternalLimits(wal_guard_interval=0.05, wal_guard_window=0.3)
GUARD: dict[str, Any] = {
    "wal_guard_bytes": 64 << 20,
    "wal_warn_within": 86400,
    "wal_act_within": 150,
    "reconnect_backoff_max": 0.3,
    "limits": LIMITS,
}
"""A guard that acts as soon as the slot's WAL has grown by 400 kB/s throughout two windows: only `await_with_writes`
writes as much, also on a machine that takes seconds for a copy."""


class TroubledTasks:
    """Runs tasks in threads. While `full` is set, they find the storage full; until `released`, no result arrives."""

    def __init__(self) -> None:
        self._tasks = ThreadTaskRunner()
        self._held = ThreadPoolExecutor(4)
        self.full = ""
        self.released = threading.Event()
        self.released.set()

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        if self.full:
            failed: Future[Result] = Future()
            failed.set_exception(StorageFull(self.full, "make room on it"))
            return failed

        if self.released.is_set():
            return self._tasks.submit(function, task)

        def run() -> Result:
            assert self.released.wait(60), "nobody released the tasks"
            return self._tasks.submit(function, task).result()

        return self._held.submit(run)

    def close(self) -> None:
        self.released.set()
        self._held.shutdown()
        self._tasks.close()


@pytest.fixture
def tasks() -> Iterator[TroubledTasks]:
    troubled = TroubledTasks()
    yield troubled
    troubled.close()


def two_tables(database: Database, warehouse: str, tasks: TroubledTasks, policy: str) -> Mirror:
    database.execute("CREATE TABLE a (id bigserial PRIMARY KEY)", "CREATE TABLE b (id bigserial PRIMARY KEY)")
    return Mirror.create(database, warehouse, tasks, wal_guard=policy, **GUARD)


def await_with_writes(database: Database, condition: Callable[[], object], what: str) -> None:
    """Writes to both tables, mostly to `a`, until the condition holds."""

    def written() -> object:
        write_to_both(database)
        database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
        return condition()

    await_true(written, 60, what)


def write_to_both(database: Database) -> None:
    """In one transaction: neither can be published without the other."""
    database.execute(
        "DO $$BEGIN"
        " INSERT INTO a SELECT FROM generate_series(1, 200); INSERT INTO b SELECT FROM generate_series(1, 2);"
        " END$$"
    )


def await_error(database: Database) -> None:
    """Returns once the pump fails, and has said so. Until then, the guard sees a pump that falls behind."""
    write_to_both(database)
    await_true(lambda: database.rows("SELECT FROM modak.mirror_slots WHERE last_error IS NOT NULL"), 60, "it fails")


def reasons(steps: Steps, **wanted: str) -> list[object]:
    """The guard's reports of shortages with these details."""
    return [
        details.get("reason")
        for step, details in list(steps.occurrences)
        if step is Step.WAL_SHORT and wanted.items() <= details.items()
    ]


@pytest.mark.further
def test_the_table_below_whose_location_the_error_is_fails(
    database: Database, warehouse: str, tasks: TroubledTasks
) -> None:
    """Also if the guard decides between two sessions, when nobody takes events."""
    mirror = two_tables(database, warehouse, tasks, "fail-table")
    steps = Steps()

    def delay(step: Step, details: dict[str, object]) -> None:
        """Holds up the guard's thread until a session has ended."""
        if step is Step.WAL_SHORT and "table" in details:
            ended = steps.count(Step.RETRYING)
            await_true(lambda: steps.count(Step.RETRYING) > ended, 30, "the next session has ended")

    steps.on = delay
    with mirror.pumping(steps):
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        # From now on, everything written below it fails, and the pump retries forever.
        ((location,),) = database.rows("SELECT location FROM modak.mirror_tables WHERE lake_table = 'b'")
        data = Path(location.removeprefix("file://")) / "data"
        if data.exists():
            data.rmdir()
        data.write_text("in the way")
        await_error(database)
        await_with_writes(database, lambda: mirror.state("public.b") == "failed", "the table in trouble has failed")
        assert len(reasons(steps, table="public.b")) == 1, "one decision is enough"
        assert "the WAL guard failed it before the slot was lost" in mirror.error("public.b")
        assert location in mirror.error("public.b")
        assert "mirror-pump register" in mirror.error("public.b")
        mirror.await_frontier()
        assert mirror.state("public.a") == "live"
        mirror.assert_equal("public.a")
    mirror.assert_sound()


def test_the_table_with_the_most_changes_fails_if_the_pump_falls_behind(
    database: Database, warehouse: str, tasks: TroubledTasks
) -> None:
    mirror = two_tables(database, warehouse, tasks, "fail-table")
    steps = Steps()
    written = threading.Event()

    def delay(step: Step, details: dict[str, object]) -> None:
        """Holds up the guard's thread until nothing more is written: `b` would be the next."""
        if step is Step.WAL_SHORT and "table" in details:
            assert written.wait(60), "the writes do not end"

    steps.on = delay
    with mirror.pumping(steps):
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        tasks.released.clear()
        await_with_writes(database, lambda: reasons(steps, table="public.a"), "the busiest table is given up")
        tasks.released.set()
        written.set()
        await_true(lambda: mirror.state("public.a") == "failed", 30, "it has failed")
        assert "the most row changes" in mirror.error("public.a")
        assert mirror.state("public.b") == "live"
        mirror.await_frontier()
        mirror.assert_equal("public.b")
    mirror.assert_sound()


@pytest.mark.parametrize("trouble", ["full", pytest.param("away", marks=pytest.mark.further)])
def test_no_table_fails_for_an_error_of_all(
    database: Database, warehouse: str, tasks: TroubledTasks, trouble: str
) -> None:
    """Although the error names one of them: the one that was written to first. Nor once the pump works again, and has
    not acknowledged yet what it published."""
    mirror = two_tables(database, warehouse, tasks, "fail-table")
    mirror = mirror.with_options(limits=InternalLimits(wal_guard_interval=0.05, wal_guard_window=1))
    root = Path(warehouse.removeprefix("file://"))
    steps = Steps()

    def delay(step: Step, details: dict[str, object]) -> None:
        """Some looks of the guard, though less than a window, between the publish and its acknowledgement."""
        if step is Step.PUBLISHED and steps.count(Step.RETRYING):
            time.sleep(0.4)

    steps.on = delay
    with mirror.pumping(steps):
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        if trouble == "full":
            ((location,),) = database.rows("SELECT location FROM modak.mirror_tables WHERE lake_table = 'a'")
            tasks.full = f"no space left to write {location}/data/x.parquet: it is full"
        else:
            root.rename(root.with_name("elsewhere"))
            root.write_text("in the way")
        await_error(database)
        none = "no single table holds up the slot: none is failed"
        await_with_writes(database, lambda: none in reasons(steps), "no table is to blame")
        if trouble == "full":
            tasks.full = ""
        else:
            root.unlink()
            root.with_name("elsewhere").rename(root)
        mirror.await_frontier()
        states = mirror.state("public.a"), mirror.state("public.b")
        assert states == ("live", "live"), [mirror.error(name) for name in ("public.a", "public.b")]
        mirror.assert_equal("public.a", "public.b")
    mirror.assert_sound()


@pytest.mark.further
@pytest.mark.parametrize("trouble", ["failing", "streaming"])
def test_the_slot_is_dropped_before_it_fills_the_disk(
    database: Database, warehouse: str, tasks: TroubledTasks, trouble: str
) -> None:
    """Here the limit is the server's own; in other tests it is `wal_guard_bytes`."""
    mirror = two_tables(database, warehouse, tasks, "drop-slot").with_options(wal_guard_bytes=0)
    steps = Steps()
    with wal_limit(database, 128):
        running = mirror.start(steps)
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        if trouble == "failing":
            tasks.full = "no space left"
        else:
            # A walsender holds the slot, and waits for the pump.
            tasks.released.clear()
        await_with_writes(database, lambda: steps.count(Step.SLOT_DROPPED), "the slot is dropped")
    tasks.released.set()
    with pytest.raises(SourceError) as refused:
        running.join()
    assert "the WAL guard dropped replication slot" in str(refused.value)
    assert "mirror-pump resync --all" in refused.value.remedy
    assert database.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s", (mirror.settings.slot,)) == []
    ((stored,),) = database.rows("SELECT last_error ->> 'error' FROM modak.mirror_slots")
    assert stored == str(refused.value), "`status` tells why nobody leads"


@pytest.mark.further
@pytest.mark.parametrize("policy", ["off", "warn"])
def test_nothing_is_done_unless_it_was_asked_for(
    database: Database, warehouse: str, tasks: TroubledTasks, policy: str
) -> None:
    mirror = two_tables(database, warehouse, tasks, policy)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("a", "b")
        mirror.await_live("public.a", "public.b")
        tasks.full = "no space left"
        if policy == "warn":
            await_with_writes(database, lambda: steps.count(Step.WAL_SHORT), "it is said")
        retried = steps.count(Step.RETRYING)
        # A guard that acts would have acted by then: it checks many times between two attempts.
        await_with_writes(database, lambda: steps.count(Step.RETRYING) >= retried + 8, "further attempts")
        tasks.full = ""
        mirror.await_frontier()
        assert steps.count(Step.WAL_SHORT) == (policy == "warn"), "once an hour"
        assert steps.count(Step.SLOT_DROPPED) == steps.count(Step.TABLE_FAILED) == 0
        mirror.assert_equal("public.a", "public.b")
